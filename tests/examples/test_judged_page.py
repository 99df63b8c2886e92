"""The recipe with a judge of docs/write-a-recipe.md works as printed."""

import re
import sys
from pathlib import Path

import pytest

from reefcommon import config, recipe_loading, topics
from reefcommon.events import TurnFollowed, utc_now
from reefcommon.ids import LoadId
from reefkit.jobs.store import JobStore
from reefkit.recipe_binding import Binding
from reefkit.recipes.models import ModelPool
from reefkit.recipes.runtime import RecipeRuntime, RecipeServices
from reefkit.recipes.signals import SignalStage
from reefkit.retention import TOO_OLD
from reefkit.retry import RetryPolicy
from tests.fakes.judge import Judge

PAGE = (Path(__file__).parents[2] / "docs" / "write-a-recipe.md").read_text()


@pytest.fixture
def served(tmp_path, monkeypatch):
    def block(language):
        every = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
        return next(text for text in every if "JudgedTurnsRecipe" in text)

    (tmp_path / "judged_turns.py").write_text(block("python"))
    (tmp_path / "serve.yaml").write_text(block("yaml"))
    monkeypatch.syspath_prepend(tmp_path)
    yield config.load(tmp_path / "serve.yaml")
    sys.modules.pop("judged_turns", None)


def turn(number, *following):
    return TurnFollowed(
        event_id=f"turn-{number}", at=utc_now(), recorded_at=utc_now(), scenario="default",
        record_ids=(f"rec-{number}",), release_id="r0", load_id="i:0", tokens=(65, 66, 67, 68), prompt_length=2,
        loss_mask=(1, 1), logprobs=(-5.5, -5.5), messages=({"role": "user", "content": "hi"},),
        next_messages=following, ended="followed" if following else "closed",
    )  # fmt: skip


async def test_a_turn_is_judged_and_learned_from(served, tmp_path, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "k")
    (bound,) = served.reef
    recipe = recipe_loading.load_recipe(bound.recipe, {**bound.knobs, "batch_size": 2})
    binding = Binding("default", bound.recipe, recipe)
    store = JobStore(tmp_path / "ledger.sqlite")
    async with Judge(text="GOOD: she said thanks") as judge:
        entry = served.models["judge"].model_copy(update={"url": judge.url})
        pool = ModelPool(store, {"judge": entry})
        services = RecipeServices(store, utc_now, pool, RetryPolicy(0.01, 0.05, 3))
        stage = SignalStage(RecipeRuntime(binding, services), lambda: None)
        thanks = {"role": "user", "content": "thanks"}
        for unit in (turn(0, thanks), turn(1), turn(2, thanks)):
            too_old = (binding.refusal((unit, TOO_OLD, None), unit.at), topics.TRAINING)
            store.put(binding.key, unit, too_old, text_only=False, signalled=False)
        await stage.settle()
        decision = recipe.decide(store.window(binding.key, 9), LoadId("i", 0))
        stage.runtime.stop()
        await pool.close()
    assert [(unit.event_id, unit.reward) for unit in decision.batch] == [
        ("turn-0", 1.0),
        ("turn-2", 1.0),
    ]
    assert store.refusals(binding.key) == {"no_signal": 1}
    assert judge.calls == 2
    assert judge.bodies[0]["messages"][1] == thanks
    store.close()
