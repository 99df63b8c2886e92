"""The game of self-play: its questions, its reports, its rewards, and a kill at every effect."""

import asyncio
import math
import random

import pytest

from recipes.self_play.domain import Task
from recipes.self_play.recipe import SelfPlayRecipe
from reefcommon.errors import BadConfig, Poison, Unavailable
from tests.recipes.letters import CODES, FAR, KNOWN, LEARNABLE, Letters
from tests.recipes.seeking import FakeSeekContext, Killed, World

KNOBS = {"rounds": 3, "count": 4, "plays": 3, "hint_plays": 2, "seed": 4}
HERE = "tests.recipes.test_self_play_seek"


class Faulty(Letters):
    """`a` has a wrong reference, `b` is solved by nothing; the verifier fails while `broken`."""

    broken: float | Exception | None = None

    def parse(self, answer):
        found = super().parse(answer)
        return Task("a", "99", "") if found and found.text == "a" else found

    async def score(self, task, answer, ctx):
        if self.broken is not None and answer not in ("", task.reference):
            if isinstance(self.broken, Exception):
                raise self.broken
            return self.broken
        if task.text == "b":
            return 1.0
        return await super().score(task, answer, ctx)


FAULTY = Faulty()


def player(prompt, seed):
    """A policy without weights: it copies hints, knows some codes and guesses the others."""
    draw = random.Random(f"{prompt} {seed}")
    if prompt[0] == "=":
        return draw.choice("lmnopqrs?")
    letter, hint = prompt[0], prompt[2:]
    if hint and letter not in FAR:
        return hint
    return CODES[letter] if letter in KNOWN else CODES[letter][0] + draw.choice("0123456789")


def recipe(**knobs):
    defaults = {**KNOBS, "domain": "tests.recipes.letters:DOMAIN"}
    return SelfPlayRecipe(SelfPlayRecipe.knobs_type(**(defaults | knobs)))


def world(policy=player, **knobs):
    return World(recipe(**knobs), policy, scenario="letters")


def seek(world, kill_at=None):
    """Returns the number of effects."""
    ctx = FakeSeekContext(world, kill_at)
    asyncio.run(world.recipe.seek(ctx))
    return ctx.moments


def state(world):
    return world.committed["game"]


def outcome_of(world):
    """All that the game has left outside, in no order of arrival."""
    return {
        "state": state(world),
        "asked": {key: (one.receipt, one.text) for key, one in world.asked.items()},
        "reports": world.reports,
        "trained": [{unit.event_id for unit in batch} for batch in world.trained],
    }


def asked_as(world, **tags):
    return [one for one in world.requests if tags.items() <= one["tags"].items()]


def report_on(world, key):
    return world.reports[world.asked[key].receipt]


@pytest.fixture(scope="module")
def whole():
    one = world()
    seek(one)
    return one


def test_each_round_asks_the_designer_and_plays_each_valid_task(whole):
    for number in range(3):
        row = state(whole)["history"][number]
        at = {"round": str(number)}
        assert len(asked_as(whole, role="designer", **at)) == 4
        assert len(asked_as(whole, role="solver", **at)) == 5 * row["valid"]
        assert len(asked_as(whole, arm="hint", **at)) == 2 * row["valid"]
        assert row["valid"] + sum(row["faults"].values()) == 4
    assert sum(row["valid"] for row in state(whole)["history"]) >= 6
    assert len({one["seed"] for one in whole.requests}) == len(whole.requests)
    for one in whole.requests:
        assert (one["temperature"], one["top_p"], one["top_k"]) == (1.0, 1.0, -1)


def test_hinted_plays_are_side_calls_without_a_report(whole):
    hinted = [one["key"] for one in asked_as(whole, arm="hint")]
    assert hinted
    for one in whole.requests:
        assert (one["tags"].get("turn-type") == "side") == (one["key"] in hinted)
        assert (whole.asked[one["key"]].receipt in whole.reports) == (one["key"] not in hinted)
        assert ("[" in one["prompt"]) == (one["key"] in hinted)


def test_the_designer_earns_the_regret_and_nothing_for_an_invalid_task(whole):
    seen = set()
    for one in asked_as(whole, role="designer"):
        number, place = one["tags"]["round"], one["tags"]["proposal"]
        letter = whole.asked[one["key"]].text
        score, stated = report_on(whole, one["key"])
        plays = asked_as(whole, role="solver", round=number, task=place)
        assert stated["role"] == stated["group"] == "designer"
        if letter == "?" or (number, letter) in seen:
            assert (score, plays) == (0.0, [])
            continue
        seen.add((number, letter))
        means = [
            sum(answer[i] == CODES[letter][i] for answer in answers for i in (0, 1))
            / 2
            / len(answers)
            if letter not in FAR
            else 0.0
            for answers in (
                [whole.asked[p["key"]].text for p in plays if ("arm" in p["tags"]) == hinted]
                for hinted in (False, True)
            )
        ]
        assert score == pytest.approx(means[1] - means[0])
        if letter in LEARNABLE:
            assert score > 0
        else:
            assert score == 0


def test_the_units_of_a_round_are_numbered_and_learned_together(whole):
    assert len(whole.trained) == 3
    for number, batch in enumerate(whole.trained):
        assert [one.metadata["number"] for one in batch] == list(range(len(batch)))
        assert {one.metadata["units"] for one in batch} == {len(batch)}
        assert {one.metadata["round"] for one in batch} == {number}
        assert {one.metadata["role"] for one in batch} == {"designer", "solver"}
        assert {one.load_id for one in batch} == {f"run:{number}"}


def test_the_next_designer_reads_the_frontier_by_regret(whole):
    pool = {}
    prompts = [asked_as(whole, role="designer", round=str(n))[0]["prompt"] for n in range(3)]
    assert prompts[0] == "="
    for number in range(2):
        for place, one in enumerate(asked_as(whole, role="designer", round=str(number))):
            plays = asked_as(whole, role="solver", round=str(number), task=str(place))
            if plays:
                letter = whole.asked[one["key"]].text
                plain = [report_on(whole, p["key"])[0] for p in plays if "arm" not in p["tags"]]
                mean = sum(plain) / len(plain)
                pool[letter] = (report_on(whole, one["key"])[0], mean)
        within = [text for text, (_, mean) in pool.items() if 0.1 <= mean <= 0.9]
        expected = sorted(within, key=lambda text: (-pool[text][0], text))
        assert prompts[number + 1] == "=" + "".join(expected)
    assert len(prompts[2]) > 2


def test_faults_have_names():
    answers = iter("a?bmm")
    one = world(lambda prompt, seed: next(answers) if prompt[0] == "=" else player(prompt, seed),
                domain=f"{HERE}:FAULTY", count=5, rounds=1)  # fmt: skip
    seek(one)
    (row,) = state(one)["history"]
    assert row["faults"] == {
        "reference_fails": 1,
        "unreadable": 1,
        "solved_by_nothing": 1,
        "duplicate": 1,
    }
    assert row["valid"] == 1
    scores = [report_on(one, f"designer-0-{place}")[0] for place in range(5)]
    assert scores[:3] == [0.0, 0.0, 0.0]
    assert scores[3] > 0
    assert scores[4] == 0.0


def test_a_task_of_the_last_rounds_is_a_duplicate_if_so_set():
    def designs(prompt, seed):
        return "m" if prompt[0] == "=" else player(prompt, seed)

    one, two = world(designs, rounds=4), world(designs, rounds=4, unique_rounds=2)
    seek(one)
    seek(two)
    assert [row["valid"] for row in state(one)["history"]] == [1, 1, 1, 1]
    assert [row["valid"] for row in state(two)["history"]] == [1, 0, 0, 1]


def test_a_round_without_a_valid_task_is_refused_and_the_game_goes_on():
    one = world(lambda prompt, seed: "?", rounds=2)
    seek(one)
    assert [row["outcome"] for row in state(one)["history"]] == ["refused", "refused"]
    assert {reason for _, reason in one.refused} == {"round_discarded: no_difference"}
    assert one.trained == []


def test_the_solver_alone_may_be_trained():
    one = world(share="solver_only")
    seek(one)
    assert {u.metadata["role"] for batch in one.trained for u in batch} == {"solver"}
    designers = {one.asked[r["key"]].receipt for r in asked_as(one, role="designer")}
    assert designers <= one.reports.keys()
    assert {f"smp-{receipt}" for receipt in designers} == {
        unit for unit, reason in one.refused if reason == "designer_not_trained"
    }


def test_uniform_tasks_are_drawn_without_a_designer():
    one = world(proposer="uniform", hint_plays=0)
    seek(one)
    assert asked_as(one, role="designer") == asked_as(one, arm="hint") == []
    assert [row["valid"] for row in state(one)["history"]] == [4, 4, 4]
    assert len(one.requests) == 3 * 4 * 3
    for number in range(3):
        letters = {r["prompt"] for r in asked_as(one, role="solver", round=str(number))}
        assert len(letters) == 4


def test_a_kill_at_any_effect_changes_nothing(whole):
    """Each of the game's effects, before and after it is done."""
    effects = seek(world())
    assert effects > 100
    for kill_at in range(effects):
        one = world()
        with pytest.raises(Killed):
            seek(one, kill_at)
        seek(one)
        assert outcome_of(one) == outcome_of(whole), kill_at


@pytest.mark.parametrize("knobs", [{"share": "solver_only"}, {"proposer": "uniform"}])
def test_many_kills_on_the_way(knobs):
    one, plain, draw = world(**knobs), world(**knobs), random.Random(3)
    seek(plain)
    while True:
        try:
            seek(one, draw.randrange(4, 60))
            break
        except Killed:
            continue
    assert outcome_of(one) == outcome_of(plain)


@pytest.mark.parametrize(
    ("broken", "error", "words"),
    [
        (Unavailable("the verifier is away"), Unavailable, "the verifier is away"),
        (math.nan, Poison, "the verifier of letters gave the score nan"),
    ],
)
def test_a_verifier_that_fails_stops_the_round_without_a_reward(broken, error, words):
    one, plain = (world(domain=f"{HERE}:FAULTY") for _ in range(2))
    seek(plain)
    FAULTY.broken = broken
    try:
        with pytest.raises(error, match=words):
            seek(one)
    finally:
        FAULTY.broken = None
    assert one.reports == {}
    assert state(one)["status"] == "pending"
    seek(one)
    assert outcome_of(one) == outcome_of(plain)


def test_a_game_that_has_ended_asks_nothing_more(whole):
    before = len(whole.requests)
    seek(whole)
    assert len(whole.requests) == before
    assert state(whole)["status"] == "committed"


def test_a_game_of_another_identity_is_refused(whole):
    other = World(recipe(plays=4), player, scenario="letters", committed=whole.committed)
    with pytest.raises(BadConfig, match="plays was 3 and is 4"):
        seek(other)
    elsewhere = World(recipe(), player, scenario="elsewhere", committed=whole.committed)
    with pytest.raises(BadConfig, match="new scenario"):
        seek(elsewhere)
    longer = World(recipe(rounds=4, policy_lr=1e-3), player, scenario="letters",
                   committed=whole.committed, load=3)  # fmt: skip
    seek(longer)
    assert state(longer)["round"] == 4
