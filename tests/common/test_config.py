"""serve.yaml: what is accepted, and that a refusal names the key, the value and what is allowed."""

import sys
from pathlib import Path

import pytest

from recipes.sao.recipe import SAORecipe
from reefcommon import config
from reefcommon.errors import BadConfig
from reefcommon.recipe_loading import load_recipe
from reefcommon.settings import SystemSettings
from reefstack.effective_config import to_yaml
from services.gateway import settings as gateway

MISSION = """
reef:
  recipe: recipes.sao.recipe:SAORecipe
  batch_size: 1
  max_staleness: 18
"""


def test_three_lines_are_enough():
    parsed = config.parse(MISSION)
    (binding,) = parsed.reef
    assert binding.knobs == {"batch_size": 1, "max_staleness": 18}
    assert binding.scenario == "default"
    assert parsed.model.name == "smollm2"
    assert parsed.all_scenarios == ("default",)


def test_several_recipes_each_on_its_scenario():
    parsed = config.parse(
        "reef:\n  - {recipe: 'a.b:C', scenario: math}\n  - {recipe: 'a.b:C', scenario: code}\nmodel: tiny\n"
    )
    assert parsed.all_scenarios == ("default", "math", "code")
    assert parsed.model.name == "tiny"


def test_a_pattern_binds_each_scenario_that_is_named():
    parsed = config.parse(
        "reef:\n  - {recipe: 'a.b:C', scenario: 'packing-*', depth: 2}\n"
        "  - {recipe: 'a.b:D', scenario: packing-26}\n"
        "scenarios: [packing-26, archive, packing-32]\n"
    )
    assert [(each.scenario, each.recipe, each.knobs) for each in parsed.reef] == [
        ("packing-26", "a.b:C", {"depth": 2}),
        ("packing-32", "a.b:C", {"depth": 2}),
        ("packing-26", "a.b:D", {}),
    ]
    assert parsed.all_scenarios == ("default", "packing-26", "packing-32", "archive")
    single = config.parse("reef: {recipe: 'a.b:C', scenario: '*-32'}\nscenarios: [packing-32]\n")
    assert [each.scenario for each in single.reef] == ["packing-32"]
    with pytest.raises(BadConfig, match="bound twice"):
        config.parse(
            "reef: [{recipe: 'a.b:C', scenario: 'p*'}, {recipe: 'a.b:C', scenario: '*q'}]\n"
            "scenarios: [pq]\n"
        )


def test_an_empty_section_is_its_defaults():
    assert config.parse(MISSION + "gateway:\nserving:\n") == config.parse(MISSION)


def test_a_merged_key_may_be_said_again():
    parsed = config.parse(
        "reef:\n  - &one {recipe: 'a.b:C', scenario: math, k: 1}\n  - {<<: *one, scenario: code}\n"
    )
    assert [(one.scenario, one.knobs) for one in parsed.reef] == [
        ("math", {"k": 1}),
        ("code", {"k": 1}),
    ]


@pytest.mark.parametrize(
    ("text", "must_say"),
    [
        ("", ["reef", "mapping"]),
        ("reef: [", ["YAML"]),
        ("- 1", ["mapping"]),
        ("model: tiny", ["reef", "required"]),
        ("reef: {recipe: nocolon}", ["reef.0.recipe", "nocolon"]),
        ("reef: {recipe: 'a.b:C', scenario: 'Not Allowed'}", ["reef.0.scenario", "Not Allowed"]),
        ("reef: {recipe: 'a.b:C'}\ngatway: {port: 1}", ["gatway", "gateway"]),
        ("reef: {recipe: 'a.b:C'}\ngateway: {port: 70000}", ["gateway.port", "65535", "70000"]),
        ("reef: {recipe: 'a.b:C'}\ngateway: {prot: 1}", ["gateway.prot"]),
        ("reef: {recipe: 'a.b:C'}\nserving: {engines: x}", ["serving.engines: Input", "a list"]),
        (
            "reef: {recipe: 'a.b:C'}\ngateway: {requests_per_s: -1}",
            ["gateway.requests_per_s", "greater than or equal to 0", "-1"],
        ),
        (
            "reef: {recipe: 'a.b:C'}\ngateway: {requests_per_s: .inf}",
            ["gateway.requests_per_s", "finite", "inf"],
        ),
        (
            "reef: {recipe: 'a.b:C'}\ngateway: {max_header_bytes: 100}",
            ["gateway.max_header_bytes", "4096", "100"],
        ),
        (
            "reef: {recipe: 'a.b:C'}\ngateway: {request_per_s: 1}",
            ["gateway.request_per_s", "did you mean 'requests_per_s'"],
        ),
        (
            "reef: {recipe: 'a.b:C'}\nevaluation: {policy: coin}",
            ["evaluation.policy", "coin", "paired_confidence"],
        ),
        ("reef: [{recipe: 'a.b:C'}, {recipe: 'a.b:C'}]", ["bound twice", "default"]),
        (
            "reef: {recipe: 'a.b:C'}\ngateway: {max_header_bytes: 2000000}",
            ["gateway.max_header_bytes", "1048576", "2000000"],
        ),
        (
            "reef: {recipe: 'a.b:C'}\nmodel: tiny\nmodel: smollm2",
            ["line 3", "'model' is there twice"],
        ),
        (
            "reef: {recipe: 'a.b:C'}\ngateway: {port: 1, port: 2}",
            ["line 2", "'port' is there twice"],
        ),
        ("reef:\nmodel: tiny", ["reef", "required"]),
    ],
)
def test_a_mistake_is_named(text, must_say):
    with pytest.raises(BadConfig) as refused:
        config.parse(text)
    for words in must_say:
        assert words in str(refused.value)


LIMITS = {
    "max_body_bytes": 2048, "max_header_bytes": 8192, "max_headers": 20, "head_timeout_s": 3.5, "body_timeout_s": 4.5,
    "requests_per_s": 2.5, "burst_requests": 7, "concurrent_requests": 3,
}  # fmt: skip


def test_the_limits_of_the_edge_reach_the_gateway(tmp_path, monkeypatch):
    path = tmp_path / "serve.yaml"
    path.write_text(
        to_yaml(config.parse(MISSION + f"gateway: {LIMITS}\n"))
    )  # as the embedded stack hands it on
    read = gateway.Settings.read(SystemSettings(config=path))
    assert {name: value for name, value in read.model_dump().items() if name in LIMITS} == LIMITS
    assert (read.limit.per_s, read.limit.burst, read.limit.concurrent) == (2.5, 7, 3)
    monkeypatch.setenv("REEF_GATEWAY_REQUESTS_PER_S", "9")
    assert gateway.Settings.read(SystemSettings(config=path)).limit.per_s == 9, (
        "the environment wins"
    )


def test_a_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "serve.yaml"
    path.write_bytes(b"reef: \xff")
    with pytest.raises(BadConfig, match="not UTF-8"):
        config.load(path)


def test_a_missing_file_is_named():
    with pytest.raises(BadConfig, match="no-such-file"):
        config.load(Path("no-such-file.yaml"))


@pytest.mark.parametrize(
    ("recipe", "knobs", "must_say"),
    [
        ("no_such_module.recipe:X", {}, ["no module", "no_such_module"]),
        ("reefcommon.recipe:NoSuchName", {}, ["NoSuchName"]),
        ("reefcommon.config:ServeConfig", {}, ["not a recipe"]),
        ("recipes.sao.recipe:SAORecipe", {"batch_size": 0}, ["reef.batch_size", "0"]),
        (
            "recipes.sao.recipe:SAORecipe",
            {"batchsize": 4},
            ["reef.batchsize", "batch_size", "max_staleness"],
        ),
    ],
)
def test_a_wrong_recipe_or_knob_is_named(recipe, knobs, must_say):
    with pytest.raises(BadConfig) as refused:
        load_recipe(recipe, knobs)
    for words in must_say:
        assert words in str(refused.value)


def _lost(*_):
    raise KeyError("lost")


@pytest.mark.parametrize(
    "broken",
    [
        {"__init__": _lost},
        {"score_range": property(_lost)},
        {"score_range": 5},
        {"score_range": (1.0, 1.0)},
    ],
    ids=["init raises", "range raises", "range is a number", "range is empty"],
)
def test_a_recipe_that_cannot_be_built_is_refused(monkeypatch, broken):
    # found at the start: in a service it would end the work of every other recipe
    monkeypatch.setattr(
        sys.modules[__name__], "Broken", type("Broken", (SAORecipe,), broken), False
    )
    with pytest.raises(BadConfig, match=f"{__name__}:Broken.*score_range"):
        load_recipe(f"{__name__}:Broken", {})


@pytest.mark.parametrize("path", sorted(Path("recipes").glob("**/serve.yaml")), ids=str)
def test_every_example_is_accepted(path, tmp_path):
    parsed = config.load(path)
    for binding in parsed.reef:
        knobs = binding.knobs
        if "teacher" in knobs:  # it is made when the demonstration begins
            (tmp_path / "adapter_config.json").write_text("{}")
            knobs["teacher"] = str(tmp_path)
        load_recipe(binding.recipe, knobs)
