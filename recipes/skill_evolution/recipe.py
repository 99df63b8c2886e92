"""Skill evolution: at night a model reads the day's sessions and works on the library of skills."""

# sessions of a day --summarise, judge--> by skill that was used --one decision each--> mutations
#
#     summarise   each session, in a few sentences (temperature 0.2)
#     judge       a session without a report's score: task completion, response quality, tool use,
#                 efficiency, each in [0, 1] and weighed (temperature 0.1)
#     group       a session belongs to each skill that the assistant named or looked up in it, else
#                 to the group without a skill
#     count       helpful if its score is at least `good_score`, else harmful, for each such skill
#     decide      per group: improve the text, describe the skill better, create another, or skip
#                 (temperature 0.4)
#     propose     all decisions as one proposal, which stands or falls together
#
# signal      scores of reports, or the judge's
# target      entries of kind `skill`
# window      `batch_size` sessions, or with `nightly: "03:00"` (UTC) all sessions of the day, when
#             the first session has ended after that time
# counts      in `ctx.store` ("counts"), shown to the decisions and by `reef recipes state`
# gate        paired tasks like any harness; `evaluation: {policy: always}` is the published method
# crash       one call of `propose` is one transaction; answers of models are kept until then
# run         reef serve -c recipes/skill_evolution/examples/house/serve.yaml
# expect      python -m tests.methods.harnesses (docs/methods.md)

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import time
from typing import Any

from pydantic import Field

from recipes.reflection.asking import ProposerKnobs, ask, entry_part
from recipes.skill_evolution.sessions import counted, referenced, transcript, window
from reefcommon.events import Unit
from reefcommon.harness.admission import MAX_NAME_CHARS
from reefcommon.harness.render import enabled
from reefcommon.harness.tree import NAME_PATTERN, Entry, HarnessRecipe, Mutation, Rejection, Tree
from reefcommon.harness.untrusted import Part, json_object
from reefcommon.recipe import Decision, Dimensions, sift
from reefcommon.recipe_context import Context

COUNTS = "counts"
WEIGHTS = {
    "task_completion": 0.55,
    "response_quality": 0.30,
    "tool_usage": 0.10,
    "efficiency": 0.05,
}

SUMMARISE = """Summarise a session of an assistant in at most five sentences: the user's goal, the
way the assistant took, the result, and what it did not know or did in a roundabout way. Keep
corrections by the user word for word."""

JUDGE = """Judge a session of an assistant by what is in it. Answer with one JSON object and no
other text, each value between 0 and 1: {"task_completion": 0.0, "response_quality": 0.0,
"tool_usage": 0.0, "efficiency": 0.0}. Without tools, tool_usage is 1."""

DECIDE = """You look after the skills of an assistant. A skill is a text that it looks up when it
does one kind of task, by the skill's description.

You are shown {about}, with summaries and scores of sessions{used}. Decide on ONE of these:
- improve: a better text for the shown skill
- describe: a better description, if the skill is used for wrong tasks, or not for the right ones
- create: a new skill, for a kind of task that comes again
- skip: the sessions teach nothing that lasts

Write what helps with tasks of this kind, and no answers of single tasks. Answer with one JSON
object and no other text; skip has the action alone:
{{"action": "create", "name": "short-name", "description": "one line", "text": "..."}}"""


class SkillEvolutionKnobs(ProposerKnobs):
    batch_size: int = Field(16, ge=1, le=512, description="sessions of a window")
    nightly: str = Field("", pattern=r"^$|^([01]\d|2[0-3]):[0-5]\d$")
    """time of day in UTC, as 03:00: a window is all sessions before it, in place of a number"""
    max_sessions: int = Field(128, ge=1, le=512, description="sessions of a night at most")
    good_score: float = Field(0.5, description="a session with at least this score helped")
    max_skills: int = Field(
        50, ge=1, le=150, description="skills of the tree; then none is created"
    )


@dataclass(frozen=True, slots=True)
class Read:
    """A session that was read. `score` None: neither a report nor the judge gives one."""

    summary: str
    score: float | None
    skills: tuple[str, ...]


class SkillEvolutionRecipe(HarnessRecipe):
    name = "skill_evolution"
    summary = "a model reads each day's sessions and improves, describes or creates skills"
    dimensions = Dimensions(
        signal="scores of sessions, of reports or a judge",
        evolves=("harness",),
    )
    consumes = ("session",)
    shown = (
        "the style of a house, scripted models, six seeds: right over the run by 0.32 [0.02, 0.61] "
        "more often than by guessing (python -m tests.methods.harnesses --seeds 0 1 2 3 4 5)"
    )
    knobs_type = SkillEvolutionKnobs
    knobs: SkillEvolutionKnobs

    def decide(self, waiting: Sequence[Unit]) -> Decision:
        knobs = self.knobs
        sessions, refused = sift(waiting, lambda unit: None if unit.messages else "no_messages")
        night = time.fromisoformat(knobs.nightly) if knobs.nightly else None
        batch = window(sessions, night, knobs.batch_size, knobs.max_sessions)
        return Decision(batch, tuple(refused))

    async def propose(
        self, ctx: Context, tree: Tree, units: Sequence[Unit], rejected: Sequence[Rejection]
    ) -> Sequence[Mutation]:
        skills = {str(entry.config["name"]): entry for entry in enabled(tree, "skill")}
        read = await asyncio.gather(*(self._read(ctx, unit, [*skills]) for unit in units))
        counts: dict[str, dict[str, int]] = ctx.store.get(COUNTS, {})
        for each in read:
            if each.score is not None:
                good = each.score >= self.knobs.good_score
                counts = counted(counts, each.skills, good=good)
        ctx.store.put(COUNTS, counts)
        groups: dict[str, list[Read]] = {}
        for each in read:
            for name in each.skills or ("",):
                groups.setdefault(name, []).append(each)
        lost = [("rejected", rejection.reason) for rejection in rejected[-5:]]
        decided = await asyncio.gather(
            *(
                self._decide_on(ctx, skills.get(name), group, counts.get(name), lost)
                for name, group in groups.items()
            )
        )
        return composed(zip(groups, decided, strict=True), skills, self.knobs.max_skills)

    async def _read(self, ctx: Context, unit: Unit, names: Sequence[str]) -> Read:
        knobs, shown = self.knobs, [("session", transcript(unit, self.knobs.shown_chars))]
        summary = await ask(ctx, knobs, SUMMARISE, shown, purpose="summarise", temperature=0.2)
        score = unit.reward
        if score is None:
            answer = await ask(ctx, knobs, JUDGE, shown, purpose="judge", temperature=0.1)
            score = weighed(answer)
        return Read(summary.strip(), score, referenced(unit, names))

    async def _decide_on(
        self,
        ctx: Context,
        skill: Entry | None,
        group: Sequence[Read],
        count: Mapping[str, int] | None,
        lost: Sequence[Part],
    ) -> dict[str, Any] | None:
        shown: list[Part] = [entry_part(skill)] if skill is not None else []
        for each in group:
            score = "unknown" if each.score is None else f"{each.score:.2f}"
            shown.append(("session", f"score {score}\n{each.summary}"))
        used = (
            f"; it has helped {count['helpful']} times and harmed {count['harmful']}"
            if count
            else ""
        )
        about = "a skill" if skill is not None else "no skill, as none was used"
        task = DECIDE.format(about=about, used=used)
        asked = ask(ctx, self.knobs, task, [*shown, *lost], purpose="decide", temperature=0.4)
        return json_object(await asked)


def weighed(answer: str) -> float | None:
    """Return the weighed score of a judge's answer; None if it cannot be read."""
    found = json_object(answer) or {}
    if found.keys() != WEIGHTS.keys():
        return None
    if not all(type(value) in (int, float) and 0 <= value <= 1 for value in found.values()):
        return None
    return sum(weight * float(found[name]) for name, weight in WEIGHTS.items())


def composed(decisions: Any, skills: Mapping[str, Entry], max_skills: int) -> tuple[Mutation, ...]:
    """Return one proposal of (group, decision) pairs. A decision that does not fit is left out."""
    mutations: dict[str, Mutation] = {}
    created: set[str] = set()
    for group, found in decisions:
        fields = {name: (found or {}).get(name) for name in ("name", "description", "text")}
        action, entry = (found or {}).get("action"), skills.get(group)
        if action in ("improve", "describe") and entry is not None:
            changed = "text" if action == "improve" else "description"
            value = fields[changed]
            if isinstance(value, str) and value.strip() and value != entry.config[changed]:
                config = {**entry.config, changed: value}
                reason = f"{action} the skill {group}"
                mutations[entry.id] = Mutation("update", entry.id, {"config": config}, reason)
        elif action == "create" and all(isinstance(value, str) for value in fields.values()):
            name = named(str(fields["name"]))
            taken = {each.lower() for each in (*skills, *created)}
            room = len(skills) + len(created) < max_skills
            # Of two groups that want the same skill the first has it.
            if name and name.lower() not in taken and room:
                created.add(name)
                options = {"kind": "skill", "config": {**fields, "name": name}}
                own = f"skill-{name}"[:MAX_NAME_CHARS]
                mutations[own] = Mutation("create", own, options, f"create the skill {name}")
    return tuple(mutations.values())


def named(text: str) -> str:
    """Return a text as the name of a skill; "" if no character of it fits."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[: MAX_NAME_CHARS - 6]
    return plain if NAME_PATTERN.fullmatch(plain) else ""
