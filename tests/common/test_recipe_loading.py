"""Classes of recipes that cannot be bound: what is refused at the start, by name."""

from pathlib import Path

import pytest

from recipes.sao.recipe import SAORecipe
from reefcli.checks import check_config
from reefcommon.config import parse
from reefcommon.errors import BadConfig
from reefcommon.evaluation import check_names, evaluation_of
from reefcommon.recipe import Knobs
from reefcommon.recipe_loading import load_recipe


class _Fine(SAORecipe):
    name = "fine"


class _Twin(SAORecipe):
    name = "fine"


def test_two_recipes_of_a_scenario_have_different_names() -> None:
    """A candidate names its recipe, and is judged by that recipe's rules."""
    at = f"{__name__}:"
    knobs = "batch_size: 1, max_staleness: 1"
    text = (
        "reef: [{recipe: %s, scenario: a, "
        + knobs
        + "}, {recipe: %s, scenario: %s, "
        + knobs
        + "}]"
    )
    with pytest.raises(BadConfig, match=r"two recipes are called 'fine': .*:_Fine and .*:_Twin"):
        check_names(parse(text % (at + "_Fine", at + "_Twin", "a")))
    check_names(parse(text % (at + "_Fine", at + "_Twin", "b")))


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("consumes", "turn", r"consumes is a tuple of 'report', 'turn', 'session'; got 'turn'"),
        ("consumes", ("turns",), r"consumes is a tuple"),
        ("consumes", None, r"consumes is a tuple"),
        ("name", "", "name must consist of letters"),
        ("name", "../up", "name must consist of letters"),
        ("name", "two words", "name must consist of letters"),
        ("name", 7, "name must consist of letters"),
        ("score_range", (2.0, 1.0), "score_range must grow"),
        ("score_range", (float("nan"), 1.0), "score_range must grow"),
        ("score_range", ("low", 1.0), "has no score_range"),
        ("score_range", 5, "has no score_range"),
    ],
)
def test_a_class_that_says_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: object, words: str
) -> None:
    monkeypatch.setattr(_Fine, attribute, value)
    with pytest.raises(BadConfig, match=words):
        load_recipe(f"{__name__}:_Fine", {"batch_size": 1, "max_staleness": 1})


class _Labels(Knobs):
    labels: frozenset[str] = frozenset("ab")


class _Nested(Knobs):
    nested: tuple[set[int], ...] = ({1},)


@pytest.mark.parametrize(("kind", "knob"), [(_Labels, "labels"), (_Nested, "nested")])
def test_a_set_among_the_knobs_is_refused(
    monkeypatch: pytest.MonkeyPatch, kind: type[Knobs], knob: str
) -> None:
    """A version and a signal's id are made of the knobs; a set is spelled anew by each process."""
    monkeypatch.setattr(_Fine, "knobs_type", kind)
    with pytest.raises(BadConfig, match=f"{knob} holds a set: .*declare it a list or a tuple"):
        load_recipe(f"{__name__}:_Fine", {})


@pytest.mark.parametrize("code", ["0", "3", "'a reason'"])
def test_a_module_that_exits_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    (tmp_path / "leaves_early.py").write_text(f"import sys\n\nsys.exit({code})\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadConfig, match=r"cannot be imported: SystemExit.*leaves_early.py, line 3"):
        load_recipe("leaves_early:R", {})


@pytest.mark.parametrize("error", [SystemExit(1), StopIteration(), ValueError("no")])
@pytest.mark.parametrize("method", ["__init__", "evaluation"])
def test_a_recipe_that_raises_when_it_is_made_is_named(
    monkeypatch: pytest.MonkeyPatch, method: str, error: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(_Fine, method, fail)
    knobs = {"batch_size": 1, "max_staleness": 1}
    with pytest.raises(BadConfig, match=f"_Fine.*{type(error).__name__}"):
        evaluation_of(load_recipe(f"{__name__}:_Fine", knobs), "a:_Fine")


BINDING = "{recipe: 'recipes.sao.recipe:SAORecipe', batch_size: 1, max_staleness: 1%s}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"reef: [{BINDING % ''}, {BINDING % ''}]", "\nreef: recipe .* is bound twice to scenario"),
        (
            f"reef: {BINDING % ', scenario: p-*'}\nscenarios: [p-a, p-a]",
            "\nreef: recipe .* 'p-a': .* or by a scenario listed twice\n",
        ),
        (f"reef: {BINDING % ', scenario: p-*'}", "\nreef: no scenario .* fits the pattern 'p-.'\n"),
        (
            f"reef: {BINDING % ''}\nmodels: {{served: {{url: 'http://h/v1', model: m}}}}",
            "\nmodels: served needs no url: it is Reef's own model\n",
        ),
    ],
)
def test_a_mistake_in_a_whole_section_is_told_in_a_line(text: str, words: str) -> None:
    with pytest.raises(BadConfig, match=words) as raised:
        parse(text)
    assert "Value error" not in str(raised.value)
    assert "got {" not in str(raised.value)


@pytest.mark.parametrize(
    "section",
    [
        "models: {judge: {url: 'http://h/v1', model: m, timeout_s: .inf}}",
        "models: {judge: {url: 'http://h/v1', model: m, max_cost: .inf, prompt_price: 1}}",
        "models: {judge: {url: 'http://h/v1', model: m, max_cost: 1, prompt_price: .inf}}",
        "models: {judge: {url: 'http://h/v1', model: m, completion_price: .nan}}",
        "evaluation: {temperature: .inf}",
    ],
)
def test_numbers_without_end_are_refused(section: str) -> None:
    with pytest.raises(BadConfig, match="cannot be used"):
        parse(f"reef: {BINDING % ''}\n{section}")


def test_a_key_that_is_missing_is_told_before_anything_starts() -> None:
    models = "models: {judge: {url: 'http://h/v1', model: m, key_env: NO_SUCH_KEY}}"
    with pytest.raises(BadConfig, match=r"models.judge.key_env: NO_SUCH_KEY is not set"):
        check_config(parse(f"reef: {BINDING % ''}\n{models}"))
