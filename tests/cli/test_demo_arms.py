"""Demonstrations by name, their arms and seeds, and the results file."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

import recipes
from reefcli.demo.command import demo
from reefcli.demo.figures import Measurement
from reefcli.demo.run import Demo
from reefcli.demo.variant import demonstrations, variant
from reefcommon import config as serve_config
from reefcommon.demonstration import Arm
from reefcommon.errors import BadConfig
from reefcommon.recipe_loading import load_recipe

RECIPES = Path(recipes.__file__).parent


def point(low: float) -> Measurement:
    return Measurement(1.0, 1, "r1-a", low + 0.05, low, low + 0.1, 96)


@pytest.fixture
def runs(monkeypatch):
    """Runs without a stack. The method reaches its goal, the others do not."""
    done = []

    async def run(self) -> None:
        done.append((self.arm.name, self.seed, self.state_dir.name))
        self.state_dir.mkdir(parents=True)
        head = SimpleNamespace(operation="training", release_id="r1-a", sequence=1, evaluation=None)
        self.figures.releases += [SimpleNamespace(release=head)] * 5
        self.figures.heldout.append(point(0.0))
        self.figures.final = point(0.85 if self.arm.name == "sao" else 0.1)
        self.stopped = "goal"

    monkeypatch.setattr(Demo, "run", run)
    return done


def exit_code(**options) -> int:
    with pytest.raises(typer.Exit) as ended:
        demo(**options)
    return ended.value.exit_code


def test_arms_and_seeds_are_run_after_each_other_into_one_results_file(runs, tmp_path):
    where = tmp_path / "demo"
    assert exit_code(model="tiny", arms="all", seeds="0,2", state_dir=where) == 0
    assert runs == [
        ("sao", 0, "sao-0"),
        ("permuted", 0, "permuted-0"),
        ("sao", 2, "sao-2"),
        ("permuted", 2, "permuted-2"),
    ]
    kept = json.loads((where / "results.json").read_text())
    assert (kept["recipe"], kept["model"]) == ("sao", "tiny")
    assert [(row["arm"], row["seed"], row["last"]) for row in kept["runs"]] == [
        ("sao", 0, 0.9),
        ("permuted", 0, 0.15),
        ("sao", 2, 0.9),
        ("permuted", 2, 0.15),
    ]
    first = kept["runs"][0]
    assert first["last_interval"] == [0.85, 0.95]
    assert {"steps", "releases", "requests_failed", "seconds"} <= first.keys()
    assert {"command", "version"} <= kept.keys()


def test_a_control_that_stays_below_the_goal_is_no_failure(runs, tmp_path):
    options = {"recipe": "sao", "model": "smollm2", "seeds": "0,1"}
    assert exit_code(**options, arms="sao,permuted", state_dir=tmp_path / "both") == 0
    assert exit_code(**options, arms="permuted", state_dir=tmp_path / "control") == 0
    assert exit_code(model="smollm2", permuted=True, state_dir=tmp_path / "alone") == 0


def test_a_run_that_ends_at_its_limit_is_no_crash(monkeypatch, tmp_path, capsys):
    async def run(self) -> None:
        self.stopped, self.figures.experienced = "limit", 12
        if self.state_dir.name != "none":
            head = SimpleNamespace(operation="training", release_id="r1-a", sequence=1)
            head.evaluation = None
            self.figures.releases.append(SimpleNamespace(release=head))
            self.figures.heldout.append(point(0.0))
            self.figures.final = point(0.4)

    monkeypatch.setattr(Demo, "run", run)
    assert exit_code(model="tiny", as_json=True, state_dir=tmp_path / "some") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["reached"] is False
    assert "ended at its limit, 5 min after its start-up" in said.err
    assert exit_code(model="tiny", state_dir=tmp_path / "none") == 1
    said = capsys.readouterr()
    assert "before the first release from training: 12 judged answers, 0 steps" in said.out
    assert exit_code(model="tiny", permuted=True, as_json=True, state_dir=tmp_path / "none") == 0
    assert json.loads(capsys.readouterr().out)["rewards_permuted"] is True


def test_results_name_the_seekers_that_made_fewer_calls(monkeypatch, tmp_path, capsys):
    async def run(self) -> None:
        self.stopped = "limit" if self.arm.name == "mean" else "done"

    monkeypatch.setattr(Demo, "run", run)
    exit_code(recipe="ttt-discover", arms="entropic,mean", seeds="3,4", state_dir=tmp_path)
    assert json.loads((tmp_path / "results.json").read_text())["cut_short"] == ["mean-3", "mean-4"]
    told = " ".join(capsys.readouterr().out.split())
    assert "with fewer calls than the others, not to be compared: mean-3, mean-4" in told


def test_a_failed_run_is_a_row_with_its_reason(monkeypatch, tmp_path):
    async def run(_self) -> None:
        raise BadConfig("serve.yaml is wrong")

    monkeypatch.setattr(Demo, "run", run)
    assert exit_code(model="tiny", seeds="0,1", state_dir=tmp_path) == 1
    rows = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert [row["failure"] for row in rows] == ["serve.yaml is wrong"] * 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"arms": "nothing"}, "choose of sao, permuted, or all"),
        ({"seeds": "0,x"}, "whole numbers"),
        ({"model": "gpt"}, "choose of smollm2, tiny"),
    ],
)
def test_a_wrong_option_names_the_choices(options, words):
    with pytest.raises(typer.BadParameter, match=words):
        demo(**options)


def test_a_recipe_without_a_demonstration_says_so():
    with pytest.raises(BadConfig, match=r"recipes\.feedback_rules\.demo"):
        demonstrations("feedback-rules")
    with pytest.raises(BadConfig, match="no demonstration"):
        demonstrations("no-such-recipe")


@pytest.fixture
def place(tmp_path):
    """A directory in which a teacher is already made."""
    (tmp_path / "teacher").mkdir()
    (tmp_path / "teacher" / "adapter_config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("recipe", sorted(path.parent.name for path in RECIPES.glob("*/demo.py")))
def test_every_arm_of_a_demonstration_is_a_valid_file(recipe, place):
    for build in demonstrations(recipe).values():
        shown = build()
        config = serve_config.load(shown.config)
        made = shown.prepare(lambda: pytest.fail("nothing is to be made"), place)
        for arm in shown.arms:
            endpoints = dict.fromkeys(config.models, "http://127.0.0.1:1/v1")
            told = variant(config, arm, endpoints, made)
            (binding,) = told.reef
            loaded = load_recipe(binding.recipe, binding.knobs)
            assert (loaded.name == shown.recipe) == (not arm.recipe), "a control of another recipe"
            assert shown.seeks or loaded.knobs.batch_size == shown.batch
            wanted = {name: value for name, value in arm.knobs.items() if value is not None}
            assert wanted.items() <= loaded.knobs.model_dump().items()
            assert {entry.url for entry in told.models.values()} <= {"http://127.0.0.1:1/v1"}


def test_a_wrong_knob_of_an_arm_is_refused():
    config = serve_config.load(demonstrations("sao")["tiny"]().config)
    (binding,) = variant(config, Arm("odd", knobs={"no_knob": 1}), {}, {}).reef
    with pytest.raises(BadConfig, match="no_knob"):
        load_recipe(binding.recipe, binding.knobs)
