"""Self-play and guidance on the host's own seeker, beside a world that outlives it: killed anywhere, the same rewards."""

import json
import random

import orjson
import pytest

from recipes.guidance.recipe import GuidanceRecipe
from recipes.self_play.recipe import SelfPlayRecipe
from reefcommon import ids
from reefcommon.events import Sampling
from reefcommon.ids import LoadId
from reefcommon.recipe_loading import load_recipe
from tests.jobs.words import WordsExecutor
from tests.recipes.samples import sample
from tests.recipes.test_guidance import EXAMPLE, load
from tests.recipes.test_self_play_seek import player
from tests.seek import rig as rigs
from tests.seek.rig import SeekRig
from tests.seek.world import World


class Served(World):
    """Answers by `policy(prompt, seed)`, and hands metadata on."""

    policy = staticmethod(player)

    def _answer(self, request, body):
        text = self.policy(body["messages"][-1]["content"], body["seed"])
        response = super()._answer(request, body)
        if response.status_code != 200:
            return response
        key = request.headers["x-reef-agent-record-id"]
        message = {"role": "assistant", "content": text}
        answer = orjson.dumps({"choices": [{"message": message, "finish_reason": "stop"}]})
        self.answers[key] = self.answers[key][0], answer
        return type(response)(200, content=answer, headers=response.headers)

    def _report(self, request, body):
        response = super()._report(request, body)
        (receipt,) = body["references"]
        unit = sample(
            event_id=ids.sample_id(body["agent_record_id"], (receipt,)),
            record_ids=(receipt,),
            score=body["score"],
            feedback=body.get("feedback") or "words",
            metadata=body["metadata"],
            sampling=(Sampling(),),
        )
        names = [one.event_id for one in self.units]
        self.units[names.index(unit.event_id)] = unit
        return response


class PlayExecutor(WordsExecutor):
    """Counts the words of a round. The world's samples are all of the load `run:5`."""

    def decide(self, waiting, head):
        return self.recipe.decide(waiting, LoadId("run", 5))


@pytest.fixture(autouse=True)
def executor(monkeypatch):
    monkeypatch.setattr(rigs, "WordsExecutor", PlayExecutor)


def self_play():
    knobs = {"rounds": 2, "count": 4, "plays": 3, "hint_plays": 1, "seed": 4}
    domain = "tests.recipes.letters:DOMAIN"
    return SelfPlayRecipe(SelfPlayRecipe.knobs_type(**knobs, domain=domain)), player


def guidance():
    def counts(prompt, seed):
        draw = random.Random(f"{prompt} {seed}")
        return "".join(draw.choice("4567") for _ in range(6 - (draw.random() < 0.2)))

    (binding,) = load(EXAMPLE).reef
    recipe = load_recipe(
        binding.recipe,
        {**binding.knobs, "steps": 2, "rollouts_per_group": 3, "allowed_token_ids": []},
    )
    assert isinstance(recipe, GuidanceRecipe)
    return recipe, counts


GAMES = {"game": self_play, "search": guidance}


async def played(tmp_path, key, **kill):
    recipe, policy = GAMES[key]()
    world = Served(**kill)
    world.policy = policy
    rig = SeekRig(tmp_path, world, recipe)
    if not await rig.live():
        rig.restart()
        assert await rig.live()
    assert rig.loop.facts()["seek"]["last_error"] is None
    state = json.loads(rig.state(key))
    jobs = rig.store.counts("jobs", rig.loop.binding.key)
    rig.store.close()
    return world, state, jobs


def rewards(world):
    return {name: (body["score"], body["metadata"]) for name, body in world.reports.items()}


@pytest.mark.parametrize("key", GAMES)
async def test_it_plays_through_the_hosts_context(tmp_path, key):
    world, state, _ = await played(tmp_path, key)
    assert state["status"] == "committed"
    ends = [row["outcome"] for row in state["history"]]
    assert len(ends) == 2
    assert ends.count("published") >= 1
    assert set(ends) <= {"published", "refused"}  # a round without any difference is refused
    assert set(world.computed.values()) == {1}
    hinted = [r for r in world.requests if r.headers.get("x-reef-tag-turn-type") == "side"]
    assert bool(hinted) == (key == "game")
    reported = {body["references"][0] for body in world.reports.values()}
    assert not {r.headers["x-reef-agent-record-id"] for r in hinted} & reported


@pytest.mark.parametrize("at", [3, 9, 20])
@pytest.mark.parametrize("key", GAMES)
async def test_a_killed_host_goes_on_to_the_same_rewards(tmp_path, key, at):
    whole, state, _ = await played(tmp_path / "whole", key)
    world, again, _ = await played(tmp_path / "killed", key, kill_at=at, after=at % 2 == 0)
    assert set(world.computed.values()) == {1}
    assert rewards(world) == rewards(whole)
    assert again == state
