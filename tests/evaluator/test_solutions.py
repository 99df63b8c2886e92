"""Solutions: the verifier's number of a candidate against that of the head."""

from typing import Any

import pytest

from reefcommon.events import CandidateProposed, Evaluation, Kind
from tests.evaluator.conftest import World, candidate
from tests.evaluator.recipes import Packing
from tests.publisher.fakes import content

pytestmark = pytest.mark.redis

RECIPE = "tests.evaluator.recipes:PackingRecipe"


def text(**knobs: Any) -> str:
    more = "".join(f", {key}: {value}" for key, value in knobs.items())
    return f"reef: {{recipe: '{RECIPE}'{more}}}"


def solution(number: str, recipe: str = RECIPE, base: str = "r0-000000") -> CandidateProposed:
    return candidate(number, kind="solution", recipe=recipe, base=base)


async def judged(world: World, number: str, *, head: str = "") -> Evaluation:
    base = "r0-000000"
    if head:
        base = "r1-000000"
        await world.advance(base, moves="solution", solution=content("solution", head))
    return await world.verdict(solution(number, base=base))


async def test_the_first_solution_is_taken_without_evidence(world: World) -> None:
    world.text = text()
    found = await judged(world, "2.5")
    assert (found.verdict, found.policy, found.strength) == ("select", "strictly_better", "none")
    assert (found.candidate_score, found.head_score, found.pairs, found.test) == (2.5, None, 0, "")
    assert found.reason == "2.5: the first solution, there is none to compare with"
    assert found.tasks[0].candidate_words == "the sum of radii is 2.5"
    assert not world.nodes[0].seen_names, "no node is needed"


@pytest.mark.parametrize(
    ("ours", "heads", "verdict", "strength", "counts"),
    [
        ("2.6359830001", "2.635983", "select", "strong", (1, 0, 0)),
        ("2.635983", "2.635983", "reject", "none", (0, 0, 1)),
        ("2.5", "2.635983", "reject", "none", (0, 1, 0)),
    ],
)
async def test_the_strictly_better_number_wins(
    world: World, ours: str, heads: str, verdict: str, strength: str, counts: tuple[int, int, int]
) -> None:
    world.text = text()
    found = await judged(world, ours, head=heads)
    assert (found.verdict, found.strength) == (verdict, strength), found.reason
    assert (found.wins, found.losses, found.ties) == counts
    assert (found.pairs, found.test, found.p_value) == (1, "one exact number against another", None)
    assert found.confidence_low == float(ours) - float(heads)
    assert found.tasks[0].head_words == f"the sum of radii is {heads}"
    assert found.reason.startswith(f"{float(ours)!r} against {float(heads)!r}")


async def test_a_number_that_is_not_exact_is_no_evidence(world: World) -> None:
    world.text = text(exact="false")
    found = await judged(world, "3", head="2")
    assert (found.verdict, found.strength, found.confidence_low) == ("select", "none", None)
    assert found.test == "one number against another"


async def test_a_verifier_that_is_not_as_exact_as_it_says(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Packing, "noise", 1e-12)
    world.text = text()
    found = await judged(world, "3", head="2")
    assert found.verdict == "evaluation_failed"
    assert "the verifier is called exact, and gave" in found.reason


async def test_a_worthless_solution_is_refused_even_as_the_first(world: World) -> None:
    world.text = text()
    found = await judged(world, "0")
    assert (found.verdict, found.reason) == ("reject", "0.0: needs more than 0")
    world.text = text() + "\nevaluation: {min_effect: 0.5}"
    near = await judged(world, "2.25", head="2")
    assert near.verdict == "reject"
    assert near.reason.endswith("needs to be greater by more than 0.5")


@pytest.mark.parametrize(("ours", "heads"), [("none", "2"), ("2", "none"), ("nan", "2")])
async def test_files_without_a_number_fail_the_evaluation(
    world: World, ours: str, heads: str
) -> None:
    world.text = text()
    found = await judged(world, ours, head=heads)
    assert (found.verdict, found.candidate_score, found.strength) == (
        "evaluation_failed",
        None,
        "none",
    )
    assert "the verifier failed: " in found.reason


async def test_a_missing_content_fails_the_evaluation(world: World) -> None:
    world.text = text()
    event = solution("1").model_copy(update={"content_id": "solution-" + "0" * 32})
    found = await world.verdict(event)
    assert (found.verdict, "no content" in found.reason) == ("evaluation_failed", True)


@pytest.mark.parametrize(("policy", "verdict"), [("always", "select"), ("", "evaluation_failed")])
async def test_a_producer_without_a_verifier(world: World, policy: str, verdict: str) -> None:
    """Only `always`, asked for by name, takes files that no verifier judges."""
    world.text = text() + (f"\nevaluation: {{policy: {policy}}}" if policy else "")
    found = await world.verdict(solution("2", recipe="somebody's"))
    assert found.verdict == verdict, found.reason
    assert ("it was not tried" if policy else "judge_files") in found.reason


@pytest.mark.parametrize("policy", ["always", "no_regression"])
async def test_no_policy_lets_a_worse_solution_win(world: World, policy: str) -> None:
    world.text = text() + f"\nevaluation: {{policy: {policy}}}"
    assert (await judged(world, "1", head="2")).verdict == "reject"


KINDS: dict[Kind, str] = {"lora": "weights", "harness": "harness", "solution": "solution"}


@pytest.mark.parametrize("on_stale", ["refuse", "merge", "reevaluate"])
@pytest.mark.parametrize("moved", KINDS)
async def test_a_solution_is_compared_with_whatever_the_head_is_now(
    world: World, on_stale: str, moved: Kind
) -> None:
    world.text = text(on_stale=on_stale)
    event = solution("3")
    await world.advance("r1-000000", moves=KINDS[moved], solution=content("solution", "2"))
    found = await world.verdict(event)
    # It was not made from its base: the better number stays the better one.
    fits = on_stale != "refuse"
    assert found.verdict == ("select" if fits else "reject"), found.reason
    assert found.head_release_id == "r1-000000", "it is compared with the head of now"
    assert (found.head_score == 2.0) is fits
