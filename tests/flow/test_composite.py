"""Weights and harness of one scenario on one chain: under load, in each way of `on_stale`."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from reefcommon.events import CandidateProposed, ReleasePublished, ReleaseRejected
from reefcommon.releases import loads_of
from reefkit.jobs.loop import HostLoop
from tests.flow.loop import WISH, Loop, running

COUNTING = "recipe: 'tests.trainer.counting:CountingRecipe', batch_size: 2, max_staleness: 9"
BACKWARDS = "recipe: 'tests.flow.recipes:BackwardsRecipe', batch_size: 2, max_staleness: 9"
RULES = (
    "recipe: 'recipes.feedback_rules.recipe:FeedbackRulesRecipe', batch_size: 3, min_agreement: 3"
)
TASKS = "tasks: [one, two, three, four, five], score: 'tests.evaluator.verifiers:length'"


def config(*bindings: str, more: str = "") -> str:
    rows = "\n".join(f"- {{{binding}}}" for binding in bindings)
    return f"reef:\n{rows}\nevaluation: {{{TASKS}{more}}}\n"


def loops(loop: Loop) -> list[HostLoop]:
    return [one for handlers in loop.hosts for one in handlers.loops]


def jobs(loop: Loop) -> Counter[str]:
    found: Counter[str] = Counter()
    for one in loops(loop):
        found.update(one.store.counts("jobs", one.binding.key))
    return found


async def until(condition: Any, limit_s: float = 150.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.01)


def published(loop: Loop) -> list[Any]:
    return [event.release for event in loop.seen if isinstance(event, ReleasePublished)]


async def test_both_kinds_advance_one_chain_under_load_and_no_step_is_lost(tmp_path: Path) -> None:
    text = config(COUNTING, RULES, more=", policy: always")
    wishes = [WISH, "Please end with Bye.", "Please be short."]
    async with running(tmp_path, text) as loop:
        answered: list[str] = []

        async def user(number: int) -> None:
            for turn in range(6):
                answer = await loop.ask()
                assert answer.status_code == 200, answer.text
                answered.append(answer.headers.get("x-reef-release-id", ""))
                receipt = answer.headers["x-reef-agent-record-id"]
                await loop.report(receipt, wishes[(turn + number) % 3])

        await asyncio.gather(*map(user, range(4)))
        # 24 reports: 12 steps of the weights at most, and a rule for each wish.
        lost = {"aborted", "conflicted", "refused", "rejected"}

        def done() -> bool:
            kinds = Counter(release.kind for release in published(loop))
            return kinds["lora"] >= 4 and kinds["harness"] >= 2

        await until(done)
        await loop.trials.settled()
        chain = await loop.heads.chain("default")
        assert not jobs(loop).keys() & lost, jobs(loop)
        head, weights = chain[0], [release for release in chain if release.kind == "lora"]
    rejected = [event for event in loop.seen if isinstance(event, ReleaseRejected)]
    assert not rejected
    assert [release.parent_id for release in chain] == [
        *(release.release_id for release in chain[1:]),
        None,
    ]
    kinds = [release.kind for release in reversed(chain)]
    assert "harness" in kinds[kinds.index("lora") :], "one kind went on after the other"
    assert head.contents.keys() == {"base", "lora", "harness"}
    assert loads_of(head)["weights"].endswith(f":{len(weights)}")
    assert loads_of(head)["harness"].endswith(f":{kinds.count('harness')}")
    assert set(answered) - {""} <= {release.release_id for release in chain}


@dataclass
class Together:
    """Judges only once two candidates of the first head wait."""

    comparer: Any
    evidence: Any
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def partner(self, *candidates: Any) -> Any:
        return await self.comparer.partner(*candidates)

    async def compare(self, candidate: CandidateProposed, partner: Any = None) -> Any:
        if not self.opened.is_set():
            async with asyncio.timeout(20):
                while len(await self.evidence.waiting(candidate.scenario)) < 2:
                    await asyncio.sleep(0.01)
            self.opened.set()
        return await self.comparer.compare(candidate, partner)


@pytest.mark.parametrize(
    ("on_stale", "second", "ends", "says"),
    [
        ("refuse", RULES, {"published": 1, "aborted": 1}, "on_stale: refuse"),
        ("merge", RULES, {"published": 2}, ""),
        ("merge", BACKWARDS, {"published": 1, "aborted": 1}, "merge, but lora has changed"),
        ("reevaluate", BACKWARDS, {"published": 2}, ""),
        ("reevaluate", RULES, {"published": 2}, ""),
    ],
)
async def test_each_way_of_on_stale(
    tmp_path: Path, on_stale: str, second: str, ends: dict[str, int], says: str
) -> None:
    stale = f", on_stale: {on_stale}"
    text = config(COUNTING + stale, second + stale, more=", policy: always")
    async with running(tmp_path, text) as loop:
        loop.trials.comparer = Together(loop.trials.comparer, loop.trials.evidence)
        for _ in range(3 if second == RULES else 2):
            answer = await loop.ask()
            await loop.report(answer.headers["x-reef-agent-record-id"])
        await until(lambda: jobs(loop) == ends)
        await loop.trials.settled()
        releases = published(loop)
        bound = [one.binding.key for one in loops(loop)]
        ended = [loop.hosts[n].store.last(key) for n in (0, 1) for key in bound]
        reasons = " ".join(job.reason for job in ended if job is not None)
    assert says in reasons
    assert len(releases) == 1 + ends["published"]
    assert [release.sequence for release in releases] == list(range(len(releases)))


JOINT = ", gate: joint"


async def test_a_pair_that_asks_for_it_is_judged_and_released_together(tmp_path: Path) -> None:
    async with running(tmp_path, config(COUNTING + JOINT, RULES + JOINT)) as loop:
        for _ in range(3):
            answer = await loop.ask()
            await loop.report(answer.headers["x-reef-agent-record-id"])
        await until(lambda: jobs(loop) == {"published": 2})
        await loop.trials.settled()
    _, release = published(loop)
    assert release.contents.keys() == {"base", "lora", "harness"}
    assert (release.kind, release.partner.kind) == ("lora", "harness")
    assert release.contents["harness"] == release.partner.content_id
    assert [loads_of(release)[group][-2:] for group in ("weights", "harness")] == [":1", ":1"]
    assert release.evaluation.wins == 5
    # Both at once: adapter and rule on one side, the plain model on the other.
    sides = {(model == "reef", WISH in str(messages)) for model, messages, _ in loop.node.asked}
    assert (False, True) in sides
    assert (True, True) not in sides


async def test_a_pair_that_loses_leaves_both_behind(tmp_path: Path) -> None:
    async with running(tmp_path, config(COUNTING + JOINT, RULES + JOINT)) as loop:
        loop.node.answer = lambda *_: "the same"
        for _ in range(3):
            answer = await loop.ask()
            await loop.report(answer.headers["x-reef-agent-record-id"])
        await until(lambda: jobs(loop) == {"rejected": 2})
        await loop.trials.settled()
    assert len(published(loop)) == 1
    rejected = [event for event in loop.seen if isinstance(event, ReleaseRejected)]
    assert len({event.candidate_id for event in rejected}) == 2


@pytest.mark.parametrize("spoilt", ["weights", "harness"])
async def test_a_pair_is_refused_if_one_part_loses(tmp_path: Path, spoilt: str) -> None:
    """The other part alone would win: it is left behind too."""

    def answer(model: str, messages: Any, *_: object) -> str:
        has = {"weights": model != "reef", "harness": WISH in str(messages)}
        return "x" if has[spoilt] else "xx" + "more" * any(has.values())

    async with running(tmp_path, config(COUNTING + JOINT, RULES + JOINT)) as loop:
        loop.node.answer = answer
        for _ in range(3):
            answered = await loop.ask()
            await loop.report(answered.headers["x-reef-agent-record-id"])
        ended = ("rejected", "published", "aborted")
        await until(lambda: sum(jobs(loop)[state] for state in ended) == 2)
        await loop.trials.settled()
        assert jobs(loop) == {"rejected": 2}
        assert [release.kind for release in published(loop)] == ["base"]
    sides = {(model == "reef", WISH in str(messages)) for model, messages, _ in loop.node.asked}
    assert sides == {(True, False), (False, True)}, "never a part alone"


async def test_a_candidate_without_a_partner_says_so_and_then_stands_alone(tmp_path: Path) -> None:
    async with running(tmp_path, config(COUNTING + JOINT, RULES)) as loop:
        for _ in range(2):
            answer = await loop.ask()
            await loop.report(answer.headers["x-reef-agent-record-id"])
        reason = "joint: waits for a candidate of kind harness"
        await until(lambda: [row.reason for row in loop.trials.waiting()] == [reason])
        await loop.trials.settled()
        loop.trials.comparer = replace(loop.trials.comparer, joint_wait_s=0.0)
        await loop.trials.round()
        await until(lambda: jobs(loop) == {"published": 1})
        assert published(loop)[-1].partner is None


async def test_weights_may_require_the_harness_that_serves(tmp_path: Path) -> None:
    """Samples of before the harness never train; those under it do (MetaClaw's rule)."""
    text = config(COUNTING + ", requires_harness: 1", RULES, more=", policy: always")
    async with running(tmp_path, text) as loop:
        (weights,) = loop.hosts[0].loops
        for _ in range(3):
            answer = await loop.ask()
            await loop.report(answer.headers["x-reef-agent-record-id"])
        await until(lambda: [r.kind for r in published(loop)] == ["base", "harness"])
        refused = weights.store.refusals
        await until(lambda: sum(refused(weights.binding.key).values()) == 3)
        assert refused(weights.binding.key) == {"old_harness: 0, required 1": 3}
        for _ in range(2):
            answer = await loop.ask()
            await loop.report(answer.headers["x-reef-agent-record-id"])
        await until(lambda: published(loop)[-1].kind == "lora")
        assert published(loop)[-1].contents.keys() == {"base", "lora", "harness"}
