"""docs/write-a-recipe.md, followed to the letter: its recipe is saved, listed, configured, and learns."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from reefcommon import config, recipe_loading
from reefcommon.events import SampleReady, utc_now
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Knobs
from reefkit.recipes.sandbox import Sandbox
from tests.jobs.words import WordsRecipe
from tests.seek.rig import SeekRig
from tests.seek.world import World

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "write-a-recipe.md").read_text()


def block(language: str, beginning: str = "") -> str:
    return re.search(rf"```{language}\n({re.escape(beginning)}.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture
def written(tmp_path, monkeypatch):
    (tmp_path / "better_half.py").write_text(block("python"))
    (tmp_path / "serve.yaml").write_text(block("yaml"))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("better_half", None)


def sample(number: int, score: float) -> SampleReady:
    return SampleReady(
        event_id=f"s{number}", at=utc_now(), recorded_at=utc_now(), scenario="default", record_ids=(f"rec-{number}",),
        release_id="r0", load_id="i:0", score=score, tokens=(65, 66, 67, 68), prompt_length=2, loss_mask=(1, 1), logprobs=(-5.5, -5.5),
    )  # fmt: skip


def test_the_recipe_is_about_thirty_lines():
    assert len([line for line in block("python").splitlines() if line.strip()]) <= 32


def test_it_decides_as_the_page_says(written):
    (binding,) = config.load(written / "serve.yaml").reef
    made = recipe_loading.load_recipe(binding.recipe, {**binding.knobs, "batch_size": 4})
    waiting = [sample(number, score) for number, score in enumerate((0.0, 1.0, 0.25, 0.75))]
    assert made.decide(waiting[:3], LoadId("i", 0)) == Decision()
    decision = made.decide(waiting, LoadId("i", 0))
    assert [s.event_id for s in decision.batch] == ["s1", "s3"]
    assert [(s.event_id, reason) for s, reason, _ in decision.refused] == [
        ("s0", "below_the_median"),
        ("s2", "below_the_median"),
    ]


def test_reef_recipes_lists_it(written):
    done = subprocess.run(
        [sys.executable, "-m", "reefcli", "recipes", "better_half:BetterHalfRecipe"], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(written)}, cwd=written,
    )  # fmt: skip
    assert "better_half" in done.stdout
    assert "reactive" in done.stdout


@pytest.mark.engine
def test_it_learns_on_the_tiny_model(written, tmp_path):
    from reefstack.models import prepare

    (binding,) = config.load(written / "serve.yaml").reef
    knobs = {**binding.knobs, "critic_warmup_steps": 0, "target_modules": ["lm_head"]}
    learner = recipe_loading.load_recipe(binding.recipe, knobs).learner(
        prepare("tiny", tmp_path / "models", lambda _f, _t: None)
    )
    result = learner.step([sample(1, 1.0), sample(2, 0.5)])
    assert result.step == 1
    assert result.metrics["policy_grad_norm"] > 0


@pytest.fixture
def sums(tmp_path, monkeypatch):
    (tmp_path / "sums.py").write_text(block("python", '"""Sums:'))
    monkeypatch.syspath_prepend(tmp_path)
    yield recipe_loading.load_recipe("sums:SumsRecipe", {"batch_size": 16})
    sys.modules.pop("sums", None)


def test_the_seeking_recipe_is_about_thirty_lines():
    assert len([line for line in block("python", '"""Sums:').splitlines() if line.strip()]) <= 34


async def test_the_seeking_recipe_asks_marks_and_learns(sums, tmp_path):
    class OneStep(WordsRecipe):
        """Its seek and attempt are those of the page."""

        attempt = type(sums).attempt

        def decide(self, waiting):
            return Decision(batch=tuple(waiting) if len(waiting) >= 16 else ())

        async def seek(self, ctx):
            ctx.store.put("step", 99)
            await type(sums).seek(self, ctx)

    world = World()
    rig = SeekRig(tmp_path, world, OneStep(Knobs()), programs=Sandbox(tmp_path))
    assert await rig.live()
    assert rig.state("step") == "100"
    assert {request.url.path for request in world.requests} == {
        "/v1/chat/completions",
        "/reef/report",
    }
    assert [body["score"] for body in world.reports.values()] == [0.0] * 16, "no answer is a number"
    assert rig.store.counts("jobs", rig.loop.binding.key) == {"published": 1}
    rig.store.close()
