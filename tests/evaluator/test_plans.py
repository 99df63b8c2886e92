"""What `evaluation` in serve.yaml may say."""

import concurrent.futures
import itertools
import sys
import time
from collections.abc import Iterator

import pytest

from reefcommon.config import parse
from reefcommon.errors import BadConfig
from services.evaluator import plans as module
from services.evaluator.plans import Plans
from tests.publisher.fakes import content

pytestmark = pytest.mark.redis


def plans(section: str) -> Plans:
    return Plans.load(
        parse(f"reef: {{recipe: 'recipes.sao.recipe:SAORecipe'}}\nevaluation: {section}")
    )


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("{confidence: 0.97, policy: paired_confidence, min_pairs: 5}", "5 pairs give p = 0.03125"),
        ("{tasks: [a, b, c, d, e], score: 'math:fsum', confidence: 0.99}", "have more pairs"),
        ("{tasks: [a, b, c], score: 'math:fsum', min_pairs: 3}", "3 pairs give p = 0.125 at best"),
        (
            "{policy: paired_confidence, confidence: 0.9999999}",
            "20 pairs give p = 9.537e-07 at best",
        ),
    ],
)
def test_a_confidence_that_no_verdict_reaches_is_refused(section: str, words: str) -> None:
    with pytest.raises(BadConfig, match=f"evaluation.confidence: .*{words}"):
        plans(section)


@pytest.mark.parametrize(
    "section",
    [
        "{tasks: [a, b, c, d, e, f, g], score: 'math:fsum', confidence: 0.99}",
        "{confidence: 0.97, min_pairs: 5}",  # no_regression: no loss is enough
        "{tasks: [a], score: 'math:fsum', min_pairs: 1, policy: score_comparison}",
    ],
)
def test_a_confidence_that_a_verdict_can_reach_is_taken(section: str) -> None:
    plans(section)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("{tasks: [a]}", "evaluation.score: missing"),
        ("{score: 'math:fsum'}", "evaluation.tasks: missing"),
        ("{tasks: [a, 3], score: 'math:fsum'}", "task 1 must be a prompt"),
        ("{tasks: 'tests.evaluator.verifiers:NO', score: 'math:fsum'}", "has no 'NO'"),
        ("{tasks: 'math:pi', score: 'math:fsum'}", "not a list of tasks"),
        ("{tasks: [a], score: 'math:pi'}", "not a function"),
        (
            "{tasks: [{id: x, prompt: a}, {id: x, prompt: b}], score: 'math:fsum'}",
            "two tasks are called 'x'",
        ),
    ],
)
def test_a_configuration_that_cannot_work(section: str, words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        plans(section)


def test_tasks_by_name() -> None:
    for name, count in (("TASKS", 2), ("tasks", 3)):
        text = (
            f"evaluation: {{tasks: 'tests.evaluator.verifiers:{name}', "
            "score: 'tests.evaluator.verifiers:length'}"
        )
        loaded = Plans.load(parse(f"reef: {{recipe: 'recipes.sao.recipe:SAORecipe'}}\n{text}"))
        assert len(loaded.of("default", "").tasks) == count
    assert content("lora", "a").startswith("lora-")


def exits() -> None:
    sys.exit(3)


def stops() -> object:
    return next(iter([]))


def is_cancelled() -> None:
    raise concurrent.futures.CancelledError


def hangs() -> None:
    time.sleep(20)


def hangs_later() -> Iterator[str]:
    yield "a"
    time.sleep(20)


def never_ends() -> object:
    return map(str, itertools.count())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("exits", "failed: RuntimeError: SystemExit: 3"),
        ("stops", "failed: RuntimeError: StopIteration"),
        ("is_cancelled", "failed: RuntimeError: .*CancelledError"),
        ("hangs", "no answer within 0.3 s"),
        ("hangs_later", "no answer within 0.3 s"),
        ("never_ends", "200 tasks or more"),
    ],
)
def test_a_function_that_gives_no_tasks_is_named_in_time(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end the evaluator, or hold up its other scenarios."""
    monkeypatch.setattr(module, "MAX_TASKS", 200)
    text = f"{{tasks: 'tests.evaluator.test_plans:{name}', score: 'math:fsum'}}"
    config = parse(f"reef: {{recipe: 'recipes.sao.recipe:SAORecipe'}}\nevaluation: {text}")
    began = time.monotonic()
    with pytest.raises(BadConfig, match=rf"test_plans:{name}.*{words}|{words}"):
        Plans.load(config, limit_s=0.3)
    assert time.monotonic() - began < 15
