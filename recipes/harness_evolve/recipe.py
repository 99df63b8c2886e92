"""Harness evolution: a model reads failures and the harness, and proposes one change."""

# reports(score <= max_score, words) + tree + what was turned down --proposer--> one mutation
#     --admission, paired episodes--> release or rejection --> shown with the next window
#
# signal      a score, and words if there are any
# target      one entry of the tree: `rules`, `memory` or `skill` (`kinds`)
# window      `batch_size` reports with a score of at most `max_score`; better ones are refused
# proposer    `models.proposer`, or the served model itself. It answers with one JSON object; an
#             answer that cannot be read, or a model that refuses, is no proposal.
# memory      the last rejected proposals with their reasons, and of the last verdicts the tasks on
#             which the candidate was worse than the head, with the verifier's words
# safety      texts of users, models and verifiers are fenced as data (`untrusted_text`); the
#             mutation passes the rules of admission like any other
# run         reef serve -c recipes/harness_evolve/examples/house/serve.yaml
# expect      python -m tests.methods.harnesses (docs/methods.md)

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from pydantic import Field

from recipes.reflection.asking import ProposerKnobs, ask, entry_part, exchange, request_of, short
from reefcommon.events import TaskResult, Unit
from reefcommon.harness.tree import EntryKind, HarnessRecipe, Mutation, Rejection, Tree
from reefcommon.harness.untrusted import Part, json_object
from reefcommon.recipe import Decision, Dimensions, Judged, sift
from reefcommon.recipe_context import Context

VERDICTS = "verdicts"

TASK = """You look after the harness of an assistant: the entries that it reads before every task.

You are shown the entries, some exchanges that went badly, and, if there are any, proposals that
were turned down and tasks on which they did worse. Find what the assistant should have known or
done, and propose ONE change that helps with tasks like these. Speak of the kind of task: the answer
to a shown task is of no use. Do not propose again what was turned down.

Entries are of these kinds: {kinds}. `rules` is always obeyed, `memory` is a thing to know, `skill`
is a way to do one kind of task.

Answer with one JSON object and no other text:
{{"op": "create", "id": "short-name", "kind": "rules", "config": {{"text": "..."}}, "reason": "."}}
`op` is create, update (of an entry's whole config) or remove. The config of rules and memory has
the field text; that of a skill has name, description (one line) and text."""


class HarnessEvolveKnobs(ProposerKnobs):
    batch_size: int = Field(1, ge=1, le=64, description="failures of a window")
    max_score: float = Field(0.0, description="a report is a failure if its score is at most this")
    kinds: tuple[EntryKind, ...] = Field(("rules", "memory", "skill"), min_length=1)
    """kinds of entries that it may change"""
    shown_verdicts: int = Field(3, ge=0, le=20)
    """verdicts whose lost tasks the proposer is shown"""


class HarnessEvolveRecipe(HarnessRecipe):
    name = "harness_evolve"
    summary = "a model reads failures and the harness, and proposes one change of an entry"
    dimensions = Dimensions(signal="a score, and words about it", evolves=("harness",))
    shown = (
        "the style of a house, scripted models, six seeds: right over the run by 0.34 [0.08, 0.60] "
        "more often than by guessing (python -m tests.methods.harnesses --seeds 0 1 2 3 4 5)"
    )
    knobs_type = HarnessEvolveKnobs
    knobs: HarnessEvolveKnobs

    def decide(self, waiting: Sequence[Unit]) -> Decision:
        return Decision.of(*sift(waiting, self._unusable), self.knobs.batch_size)

    async def propose(
        self, ctx: Context, tree: Tree, units: Sequence[Unit], rejected: Sequence[Rejection]
    ) -> Sequence[Mutation]:
        limit = self.knobs.shown_chars
        shown: list[Part] = [entry_part(entry) for entry in tree if entry.kind in self.knobs.kinds]
        for unit in units:
            shown += exchange(unit, limit)
        shown += [("rejected", short(_told(rejection), limit)) for rejection in rejected]
        shown += [("lost", short(words, limit)) for words in ctx.store.get(VERDICTS, [])]
        task = TASK.format(kinds=", ".join(self.knobs.kinds))
        answer = await ask(ctx, self.knobs, task, shown, purpose="propose a change")
        mutation = mutation_in(answer, tree, self.knobs.kinds)
        return () if mutation is None else (mutation,)

    async def on_verdict(self, judged: Judged, ctx: Context) -> None:
        if judged.evaluation is None or not self.knobs.shown_verdicts:
            return
        lost = [line for task in judged.evaluation.tasks if (line := _lost(task))]
        words = "\n".join([f"{judged.outcome}: {judged.candidate.reason}", *lost[:20]])
        before = [each for each in ctx.store.get(VERDICTS, []) if each != words]
        ctx.store.put(VERDICTS, [*before, words][-self.knobs.shown_verdicts :])

    def _unusable(self, unit: Unit) -> str | None:
        if unit.reward is None or unit.reward > self.knobs.max_score:
            return "no_failure"
        return None if request_of(unit) else "no_request"


def mutation_in(answer: str, tree: Tree, kinds: Sequence[EntryKind]) -> Mutation | None:
    """Return the mutation of an answer; None if it is not exactly that."""
    found = json_object(answer)
    if found is None or not found.keys() <= {"op", "id", "kind", "config", "reason"}:
        return None
    op, name, reason = found.get("op"), found.get("id"), found.get("reason", "")
    if not isinstance(name, str) or not isinstance(reason, str):
        return None
    there = next((entry for entry in tree if entry.id == name), None)
    if op == "remove":
        fits = there is not None and there.kind in kinds and "config" not in found
        return Mutation("remove", name, reason=reason) if fits else None
    kind, config = found.get("kind", there.kind if there else None), found.get("config")
    if op not in ("create", "update") or kind not in kinds or not isinstance(config, dict):
        return None
    # An id that exists means its entry, whatever the model calls the operation.
    if there is None:
        options = {"kind": kind, "config": config}
        return Mutation("create", name, options, reason) if op == "create" else None
    return Mutation("update", name, {"config": config}, reason) if there.kind == kind else None


def _told(rejection: Rejection) -> str:
    changes: list[Mapping[str, Any]] = [
        {"op": each.op, "id": each.id, "options": each.options} for each in rejection.mutations
    ]
    return f"{orjson.dumps(changes).decode()}\nturned down: {rejection.reason}"


def _lost(task: TaskResult) -> str:
    if task.candidate is None or task.head is None or task.candidate >= task.head:
        return ""
    scores = f"{task.candidate:.3g} instead of {task.head:.3g}"
    return f"{task.task}: {scores}; {task.candidate_words}"
