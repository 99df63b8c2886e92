"""The greeting example on the model that it is shipped for: a rule that users ask for wins."""

from pathlib import Path

import pytest

from recipes.feedback_rules.recipe import rule_text
from reefcommon.config import load
from reefcommon.events import TaskResult
from reefcommon.harness.delivery import episode_messages
from reefcommon.harness.tree import Entry
from reefcommon.recipe_loading import resolve
from reefstack.models import default_cache_dir, prepare
from services.evaluator.domain.policies import decide
from services.evaluator.plans import Plans
from tests.engine.conftest import serving

CONFIG = Path(__file__).parents[2] / "recipes/feedback_rules/examples/greeting/serve.yaml"
WISH = "Greet the user with Hello first."


@pytest.mark.engine
@pytest.mark.smollm2
def test_the_shipped_rule_wins_its_held_out_tasks():
    pytest.importorskip("gguf")
    section = load(CONFIG).evaluation
    score = resolve(section.score)
    tree = (Entry("feedback-1", "rules", {"text": rule_text(WISH)}),)
    results = []
    with serving(prepare("smollm2", default_cache_dir())) as node:
        for number, task in enumerate(resolve(section.tasks)):
            means = []
            for side in (tree, ()):
                asked = [{"role": "user", "content": task}]
                answer = node.chat(
                    messages=episode_messages(side, asked, rules_at=section.rules_at),
                    n=section.samples_per_task,
                    max_tokens=section.max_tokens,
                    temperature=section.temperature,
                    seed=1000 * number,
                )
                texts = [choice["message"]["content"] for choice in answer["choices"]]
                means.append(sum(score(task, text) for text in texts) / len(texts))
            results.append(TaskResult(task=task, candidate=means[0], head=means[1]))
    plans = Plans.load(load(CONFIG))
    rule = plans.of("default", "feedback_rules").rule
    assert (rule.policy, rule.confidence) == ("paired_confidence", 0.9)
    ruling = decide(results, rule)
    assert ruling.verdict == "select", ruling.reason
