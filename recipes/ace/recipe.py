"""ACE: a playbook of bullets grows by small changes; each counts how often it helped or harmed."""

# generator   the served model answers users, with the playbook before it
# reflector   reads an exchange, its score, its words and the bullets: an insight, and the bullets
#             that helped or harmed
# curator     reads the insights and the bullets: new bullets, and no other operation
# playbook    one bullet, one entry of kind `rules`; its id is a digest of its words
#
# No text is ever written anew as a whole: whole rewrites shrink a playbook to a summary.
#
# signal      a score and words of reports; a report without either is refused
# target      the `rules` entries `ace-...`; other entries stay as they are
# counters    in `ctx.store` ("counts"), also of bullets that do not serve any more
# size        at most `max_bullets`, of at most `max_bullet_chars`; the least useful makes room
# harm        a bullet whose harm exceeds its help by `remove_at` is removed
# gate        paired tasks like any harness; `evaluation: {policy: always}` is the published method,
#             which releases each change and relies on rollback
# run         reef serve -c recipes/ace/examples/house/serve.yaml
# expect      python -m tests.methods.harnesses (docs/methods.md)

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pydantic import Field

from recipes.ace.playbook import Count, bullet_id, bullets, delta, marked
from recipes.feedback_rules.recipe import words_of
from recipes.reflection.asking import ProposerKnobs, ask, exchange, request_of
from reefcommon.events import Unit
from reefcommon.harness.tree import HarnessRecipe, Mutation, Rejection, Tree
from reefcommon.harness.untrusted import Part, json_object
from reefcommon.recipe import Decision, Dimensions, sift
from reefcommon.recipe_context import Context

COUNTS = "counts"

REFLECT = """You review an exchange of an assistant that had a playbook: bullets, each with an id.

From the score and the words, find what went well or wrong and why, and what one sentence would have
told the assistant. Then say which bullets helped the answer and which led it astray; leave out
those that had no part in it. Answer with one JSON object and no other text:
{"insight": "one or two sentences; empty if there is none", "helpful": ["id"], "harmful": ["id"]}"""

CURATE = """You keep the playbook of an assistant: a list of bullets. You are shown the bullets and
new insights. Write the bullets that are missing: one fact or rule each, for tasks to come, at
most {limit} characters. Do not repeat or reword a bullet that is there, and leave the list as it
is. Answer with one JSON object and no other text: {{"add": ["...", "..."]}}, with an empty list if
nothing is missing."""


class AceKnobs(ProposerKnobs):
    batch_size: int = Field(4, ge=1, le=64, description="reports of a window")
    max_bullets: int = Field(60, ge=1, le=150, description="bullets of the playbook at most")
    max_bullet_chars: int = Field(400, ge=20, le=2000, description="of a bullet; more: left out")
    max_new: int = Field(4, ge=1, le=20, description="bullets that a window adds at most")
    remove_at: int = Field(2, ge=1, description="a bullet goes when harm exceeds help by this")


class AceRecipe(HarnessRecipe):
    name = "ace"
    summary = "a playbook of bullets grows by small changes, and drops those that do harm"
    dimensions = Dimensions(signal="a score, and words about it", evolves=("harness",))
    shown = (
        "the style of a house, scripted models, six seeds: right over the run by 0.44 [0.21, 0.67] "
        "more often than by guessing (python -m tests.methods.harnesses --seeds 0 1 2 3 4 5)"
    )
    knobs_type = AceKnobs
    knobs: AceKnobs

    def decide(self, waiting: Sequence[Unit]) -> Decision:
        return Decision.of(*sift(waiting, _unusable), self.knobs.batch_size)

    async def propose(
        self, ctx: Context, tree: Tree, units: Sequence[Unit], rejected: Sequence[Rejection]
    ) -> Sequence[Mutation]:
        known, knobs = bullets(tree), self.knobs
        stored = ctx.store.get(COUNTS, {})
        counts = {name: Count(**count) for name, count in stored.items()}
        book: list[Part] = [("bullet", f"{name}: {e.config['text']}") for name, e in known.items()]
        reflections = await asyncio.gather(*(self._reflect(ctx, unit, book) for unit in units))
        for reflection in reflections:
            counts = dict(marked(counts, known, reflection))
        ctx.store.put(COUNTS, {name: asdict(count) for name, count in counts.items()})
        insights = [found for each in reflections if (found := _text(each.get("insight")))]
        added = await self._curate(ctx, insights, book) if insights else []
        # A bullet that was turned down is not tried again.
        lost = {mutation.id for rejection in rejected for mutation in rejection.mutations}
        new = [text for text in added if bullet_id(text) not in lost]
        return delta(known, counts, new, limit=knobs.remove_at, most=knobs.max_bullets)

    async def _reflect(self, ctx: Context, unit: Unit, book: Sequence[Part]) -> dict[str, Any]:
        shown = [*book, *exchange(unit, self.knobs.shown_chars)]
        return json_object(await ask(ctx, self.knobs, REFLECT, shown, purpose="reflect")) or {}

    async def _curate(
        self, ctx: Context, insights: Sequence[str], book: Sequence[Part]
    ) -> list[str]:
        limit = self.knobs.max_bullet_chars
        shown = [*book, *(("insight", insight) for insight in insights)]
        task = CURATE.format(limit=limit)
        found = json_object(await ask(ctx, self.knobs, task, shown, purpose="curate")) or {}
        added = found.get("add")
        texts = [_text(each) for each in added] if isinstance(added, list) else []
        return [text for text in texts if text and len(text) <= limit][: self.knobs.max_new]


def _unusable(unit: Unit) -> str | None:
    fit = request_of(unit) and (unit.reward is not None or words_of(unit))
    return None if fit else "nothing_to_reflect_on"


def _text(value: object) -> str:
    return " ".join(value.split()) if isinstance(value, str) else ""
