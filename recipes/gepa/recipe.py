"""GEPA: texts of the harness evolve by reflection, on the fronts of an archive of candidates."""

# An iteration:
#     parent      drawn from the archive: of the candidates that are best at some task of the
#                 validation and that none dominates, in proportion to the number of these tasks
#     minibatch   the window's requests, or the next `minibatch_size` tasks of `train`, in an order
#                 that is drawn anew each epoch
#     component   `rules` or `skill`, in turn for each candidate
#     child       the proposer reads the component's text and, for each task, input, output, score
#                 and words, and writes a new text
#     keep        if sum(child's scores) > sum(parent's) on this minibatch: the child answers all of
#                 `validation`, and its scores by task join the archive
#     publish     the archive's best mean, if it is strictly above the stored mean of the candidate
#                 that serves
#
# signal      a score and words: of a verifier (`evaluation.score`), or of the reports
# target      the texts of the entries `gepa-rules` and `gepa-skill`; other entries stay as they are
# reports     set the pace: a window of `batch_size` is `iterations` iterations. Without `train`
#             they are the minibatch as well: with the parent that serves, and answers of the head's
#             release, their scores are used as they are, at no cost. Then reports must score as the
#             verifier does; it reads a report's `metadata` as keys of the task.
# budget      `max_metric_calls` answers to tasks; looked at between two iterations.
#             A window that meets `REEF_HARNESS_STEP_CALLS` or the time of `propose` keeps none of
#             its iterations: give it room, or fewer of them.
# gate        the candidate is judged like any other, on `evaluation.tasks`: take others than
#             `validation`, which has chosen it. A candidate that was turned down is not proposed
#             again, and stays a parent. A pending candidate holds up the next window.
# size        a text over `max_text_chars` is no child, and the prompt says the limit
# run         reef serve -c recipes/gepa/examples/house/serve.yaml
# expect      python -m tests.methods.gepa (docs/methods.md)
#
# It proposes; it does not seek. A call of `propose` is one transaction: archive, random stream and
# proposal are saved together, and until then every model's answer is kept, so that a killed host
# repeats the same iterations with the same answers. A seeker would have to commit between all of
# its questions, and its candidates would lack what a job has: mutations on the head's tree, the
# dialogue, rejections, one candidate at a time, a new base if another kind of release overtakes it.
# The price: an iteration waits for a report.

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from recipes.feedback_rules.recipe import words_of
from recipes.gepa.knobs import GepaKnobs
from recipes.gepa.search import Search, Texts
from recipes.gepa.texts import NAMES, PREFIX, TASK, changes, texts_of
from recipes.reflection.asking import answer_of, ask, request_of, short
from reefcommon.errors import BadConfig
from reefcommon.evaluator import BadTask, as_tasks
from reefcommon.events import Unit
from reefcommon.harness.admission import CHAT, check_tree
from reefcommon.harness.tree import HarnessRecipe, Inadmissible, Mutation, Rejection, Tree, apply
from reefcommon.harness.untrusted import Part
from reefcommon.ids import digest
from reefcommon.recipe import Decision, Dimensions, sift
from reefcommon.recipe_context import Context
from reefcommon.recipe_loading import resolve
from reefcommon.statistics import independent_seed

STATE = "search"
_NUMBER = re.compile(r"gepa candidate (\d+):")
_FENCED = re.compile(r"```[^\n]*\n(.*)```", re.DOTALL)

Batch = Sequence[tuple[str, Any]]
"""Name and task, perhaps more than once."""


class Result(NamedTuple):
    score: float
    answer: str
    words: str


@dataclass(frozen=True, slots=True)
class Window:
    """A call of `propose`. `served`: the number of the candidate that serves."""

    ctx: Context
    tree: Tree
    units: Sequence[Unit]
    served: int


class GepaRecipe(HarnessRecipe):
    name = "gepa"
    summary = "texts of the harness evolve by reflection, on the Pareto fronts of an archive"
    dimensions = Dimensions(signal="a score and words about it", evolves=("harness",))
    shown = (
        "a task with two fronts, seeds 0, 1, 2: 0.90, and 0.50 by hill climbing at equal answers"
        " (docs/methods.md has the command)"
    )
    knobs_type = GepaKnobs
    knobs: GepaKnobs

    def __init__(self, knobs: GepaKnobs) -> None:
        super().__init__(knobs)
        self.validation = tasks_of("validation", knobs.validation)
        self.train = tasks_of("train", knobs.train)
        if not self.validation:
            raise BadConfig("gepa: `validation` is empty: name tasks")

    def decide(self, waiting: Sequence[Unit]) -> Decision:
        def why_not(unit: Unit) -> str | None:
            return None if self.train or _usable(unit) else "no_score_or_no_request"

        return Decision.of(*sift(waiting, why_not), self.knobs.batch_size)

    async def propose(
        self, ctx: Context, tree: Tree, units: Sequence[Unit], rejected: Sequence[Rejection]
    ) -> Sequence[Mutation]:
        # An instruction of a person has no score: no search can be made of it.
        if not self.train and not all(map(_usable, units)):
            return ()
        search, texts = self._search(ctx), texts_of(tree, self.knobs.components)
        limit = self.knobs.max_metric_calls
        served = search.index_of(texts)
        if served is None:  # the first window, or somebody else has changed the texts
            if search.spent >= limit:
                return ()
            served = await self._join(ctx, search, tree, texts, None)
        _mark(search, rejected)
        for _ in range(self.knobs.iterations):
            if search.spent >= limit:
                break
            await self._iterate(search, Window(ctx, tree, units, served))
        self._keep(ctx, search, served)
        return self._proposal(search, tree, served)

    async def _iterate(self, search: Search, window: Window) -> None:
        knobs, ctx, tree = self.knobs, window.ctx, window.tree
        search.iteration += 1
        number = search.draw(knobs.select)
        parent = search.candidates[number]
        batch, free = self._batch(search, window, number)
        before = free or await self._results(search, ctx, tree, parent.texts, batch)
        if knobs.skip_perfect_score and all(r.score >= knobs.perfect_score for r in before):
            return
        name = search.component(number)
        text = await self._reflect(ctx, name, parent.texts[name], batch, before)
        child = {**parent.texts, name: text}
        if not text or child == parent.texts or not _admissible(self._with(tree, child)):
            return
        after = await self._results(search, ctx, tree, child, batch)
        if sum(result.score for result in after) > sum(result.score for result in before):
            await self._join(ctx, search, tree, child, number)

    def _batch(self, search: Search, window: Window, parent: int) -> tuple[Batch, list[Result]]:
        """Return the tasks of an iteration, and the parent's results if they are free."""
        if self.train:
            names = search.minibatch(list(self.train), self.knobs.minibatch_size)
            return [(name, self.train[name]) for name in names], []
        units, head = window.units, window.ctx.head
        tasks = [
            (u.event_id, {**u.metadata, "id": u.event_id, "messages": list(request_of(u))})
            for u in units
        ]
        serves = head is not None and all(u.release_id == head.release_id for u in units)
        if not (self.knobs.trust_reports and parent == window.served and serves):
            return tasks, []
        return tasks, [Result(u.reward or 0.0, answer_of(u), words_of(u)) for u in units]

    async def _results(
        self, search: Search, ctx: Context, tree: Tree, texts: Texts, batch: Batch
    ) -> list[Result]:
        search.spent += len(batch)
        # The last minibatch of an epoch may hold a task twice: it is asked once.
        different = dict(batch)
        luck = independent_seed("gepa", self.knobs.seed, search.iteration)
        candidate = self._with(tree, texts)
        run = ctx.trial([candidate], [*different.values()], samples=self.knobs.samples, seed=luck)
        (found,) = await run
        rows = map(Result, found.scores, found.answers, found.words)
        by_task = dict(zip(different, rows, strict=True))
        return [by_task[name] for name, _ in batch]

    async def _join(
        self, ctx: Context, search: Search, tree: Tree, texts: Texts, parent: int | None
    ) -> int:
        """Validate texts and add them to the archive; return their number."""
        search.spent += len(self.validation)
        # The same luck for every candidate, and another than in the minibatches.
        tasks, luck = [*self.validation.values()], independent_seed("gepa", self.knobs.seed)
        candidate = self._with(tree, texts)
        (found,) = await ctx.trial([candidate], tasks, samples=self.knobs.samples, seed=luck)
        return search.add(texts, parent, dict(zip(self.validation, found.scores, strict=True)))

    async def _reflect(
        self, ctx: Context, name: str, text: str, batch: Batch, results: Sequence[Result]
    ) -> str:
        """Return the component's new text; "" if there is none that may be used."""
        limit = self.knobs.shown_chars
        shown: list[Part] = [("text", text)]
        for (_, task), result in zip(batch, results, strict=True):
            (read,) = as_tasks([task])
            asked = "\n\n".join(str(m.get("content")) for m in read.messages)
            shown += [("input", short(asked, limit)), ("output", short(result.answer, limit))]
            shown.append(("feedback", f"score {result.score:g}. {result.words}"))
        size = self.knobs.max_text_chars
        told = TASK.format(name=NAMES[name], limit=size)  # type: ignore[index]
        answer = await ask(ctx, self.knobs, told, shown, purpose=f"reflect on {name}")
        fenced = _FENCED.search(answer)
        found = fenced[1].strip() if fenced else ""
        return found if len(found) <= size else ""

    def _proposal(self, search: Search, tree: Tree, served: int) -> Sequence[Mutation]:
        fit = [i for i, each in enumerate(search.candidates) if not each.turned_down]
        best = max([*fit, served], key=lambda index: search.candidates[index].mean)
        candidate, now = search.candidates[best], search.candidates[served]
        if candidate.mean <= now.mean:
            return ()
        means = f"mean {candidate.mean:.4g} against {now.mean:.4g}"
        reason = f"gepa candidate {best}: {means} on {len(self.validation)} tasks"
        return self._changes(tree, candidate.texts, reason)

    def _with(self, tree: Tree, texts: Texts) -> Tree:
        """Return the tree with these texts, as a trial renders it: without an agent's own files."""
        whole = apply(tree, self._changes(tree, texts))
        return tuple(entry for entry in whole if entry.kind in CHAT.kinds)

    def _changes(self, tree: Tree, texts: Texts, reason: str = "") -> list[Mutation]:
        about = {"name": "gepa", "description": self.knobs.skill_description}
        return changes(tree, texts, {"rules": {}, "skill": about}, reason)

    def _search(self, ctx: Context) -> Search:
        stored = ctx.store.get(STATE)
        if stored is None or stored["of"] != self._identity():
            return Search(self.knobs.seed)
        return Search.restore(stored["search"])

    def _keep(self, ctx: Context, search: Search, served: int) -> None:
        progress = {
            "metric calls": f"{search.spent} of {self.knobs.max_metric_calls}",
            "iterations": search.iteration + 1,
            "means": [round(candidate.mean, 4) for candidate in search.candidates],
            "served": served,
            "best": search.best(),
        }
        ctx.store.put("progress", progress)
        ctx.store.put(STATE, {"of": self._identity(), "search": search.state()})

    def _identity(self) -> str:
        # Other tasks have other scores: with them the search begins anew.
        parts = (self.knobs.components, [*self.validation], [*self.train], self.knobs.seed)
        return digest("gepa", *parts)


def _usable(unit: Unit) -> bool:
    return unit.reward is not None and bool(request_of(unit))


def _admissible(tree: Tree) -> bool:
    try:
        check_tree(tree, CHAT)
    except Inadmissible:
        return False
    return True


def _mark(search: Search, rejected: Sequence[Rejection]) -> None:
    """Mark the candidates of the archive that were turned down."""
    for rejection in rejected:
        for mutation in rejection.mutations:
            number = _NUMBER.match(mutation.reason)
            if number is None or int(number[1]) >= len(search.candidates):
                continue
            candidate = search.candidates[int(number[1])]
            text = ((mutation.options or {}).get("config") or {}).get("text", "")
            # An earlier search had the same numbers.
            if candidate.texts.get(mutation.id.removeprefix(PREFIX)) == text:
                candidate.turned_down = rejection.reason[:200]


def tasks_of(key: str, given: str | Sequence[Any]) -> dict[str, Any]:
    try:
        items = resolve(given) if isinstance(given, str) else given
        return {task.name: task.given for task in as_tasks(items)}
    except (BadTask, BadConfig, TypeError) as error:
        raise BadConfig(f"gepa: {key}: {error}") from error
