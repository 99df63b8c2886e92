"""What `evaluation` in serve.yaml may say."""

import pytest

from reefcommon.config import parse
from reefcommon.errors import BadConfig
from services.evaluator.plans import Plans
from tests.publisher.fakes import content

pytestmark = pytest.mark.redis


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
        Plans.load(
            parse(f"reef: {{recipe: 'recipes.sao.recipe:SAORecipe'}}\nevaluation: {section}")
        )


def test_tasks_by_name() -> None:
    for name, count in (("TASKS", 2), ("tasks", 3)):
        text = (
            f"evaluation: {{tasks: 'tests.evaluator.verifiers:{name}', "
            "score: 'tests.evaluator.verifiers:length'}"
        )
        plans = Plans.load(parse(f"reef: {{recipe: 'recipes.sao.recipe:SAORecipe'}}\n{text}"))
        assert len(plans.tasks) == count
    assert content("lora", "a").startswith("lora-")
