"""Guidance: its form, its tokens, the executor that is asked once or not at all, and kills."""

import asyncio
import random
from pathlib import Path

import pytest
from pydantic import ValidationError

from recipes.guidance.examples.row_pattern.executor import execute
from recipes.guidance.form import guidance_mask, read_guidance
from recipes.guidance.recipe import GuidanceRecipe
from recipes.ttt_discover.archive import Node, Solution
from recipes.ttt_discover.examples.row_pattern import problem as row_pattern
from recipes.ttt_discover.examples.row_pattern.pattern import is_pattern, packing_of
from reefcommon.config import load
from reefcommon.errors import BadConfig
from reefcommon.recipe_context import BudgetSpent, ModelFailed, Reply
from reefcommon.recipe_loading import load_recipe
from tests.recipes.seeking import FakeSeekContext, Killed, World

EXAMPLE = Path("recipes/guidance/examples/row_pattern/serve.yaml")
KNOBS = {"steps": 3, "groups_per_step": 2, "rollouts_per_group": 3, "seed": 4}
SEED = Node("seed", Solution(0.0, ""), seed=True)


@pytest.mark.parametrize(
    ("answer", "guidance"),
    [
        ("<guidance>go left</guidance>", "go left"),
        (" <guidance>\nline\nline\n</guidance>\n", "line\nline"),
        ("<think>so <b></think>\n<guidance>go</guidance>", "go"),
        ("<guidance></guidance>", None),
        ("<guidance> </guidance>", None),
        ("go left", None),
        ("Sure! <guidance>go</guidance>", None),
        ("<guidance>go</guidance> and more", None),
        ("<guidance>go", None),
        ("<guidance>a</guidance><guidance>b</guidance>", None),
        ("<guidance>a<guidance>b</guidance>", None),
        ("<guidance>a</guidance>b</guidance>", None),
        ("<think><guidance>go</guidance>", None),
        ("", None),
    ],
)
def test_guidance_has_one_form(answer, guidance):
    assert read_guidance(answer, ".+") == guidance


def test_guidance_must_match_the_pattern():
    assert read_guidance("<guidance>345</guidance>", "[2-7]{3}") == "345"
    assert read_guidance("<guidance>3458</guidance>", "[2-7]{3}") is None
    assert read_guidance("345", "[2-7]{3}", tags=False) == "345"
    assert read_guidance("", ".*", tags=False) is None
    with pytest.raises(ValidationError, match="regular expression"):
        GuidanceRecipe.knobs_type(pattern="(")


def mask(*pieces):
    return guidance_mask(range(len(pieces)), pieces.__getitem__)


def test_only_tokens_of_the_guidance_train():
    whole = ("<think>", "a", "</think>", "\n", "<gui", "dance>", "go", "</guidance", ">", "")
    assert mask(*whole) == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    assert mask("\n<", "guidance>go</guidance>\n") == [1, 1]  # a token that is partly inside
    assert mask("<guidance>", "a", "</guidance>", "\n") == [1, 1, 1, 0]


def test_all_tokens_of_a_wrong_form_train():
    assert mask("Sure! ", "<guidance>", "go", "</guidance>") == [1, 1, 1, 1]
    assert mask("<think>", "a") == [1, 1]
    assert guidance_mask((1, 2), "ab".__getitem__, tags=False) == [1, 1]


class Executor:
    """A model that builds from the last line of its prompt. Fails with `fault` while it is set."""

    def __init__(self):
        self.asked, self.fault, self.draw = [], None, random.Random(1)

    def of(self, ctx):
        async def chat(messages, *, purpose, n=1, **params):
            ctx._moment()
            text = messages[-1]["content"]
            if self.fault is not None:
                raise self.fault
            self.asked.append((text, purpose, params))
            # As a model that is not deterministic: another answer each time.
            reply = Reply(execute(text.splitlines()[-1], SEED)[:-1] + self.draw.choice("23456"))
            ctx._moment()
            return [reply]

        return type("FakeModel", (), {"chat": staticmethod(chat)})()


def guide(prompt, seed):
    draw = random.Random(f"{prompt} {seed}")
    text = "".join(draw.choice("34567") for _ in range(6))
    return f"<guidance>{text}</guidance>" if draw.random() < 0.8 else text


def recipe(**knobs):
    return GuidanceRecipe(GuidanceRecipe.knobs_type(**({**KNOBS, "pattern": "[2-7]{6}"} | knobs)))


def world(policy=guide, **knobs):
    return World(recipe(**knobs), policy)


def seek(world, executor, kill_at=None):
    ctx = FakeSeekContext(world, kill_at)
    ctx.models = {} if executor is None else {"executor": executor.of(ctx)}
    asyncio.run(world.recipe.seek(ctx))
    return ctx.moments


@pytest.fixture(scope="module")
def played():
    one, executor = world(), Executor()
    seek(one, executor)
    return one, executor


def test_malformed_guidance_scores_0_without_a_call_of_the_executor(played):
    one, executor = played
    formed = [a for a in one.asked.values() if a.text.startswith("<")]
    malformed = [a for a in one.asked.values() if not a.text.startswith("<")]
    assert len(formed) + len(malformed) == 18
    assert malformed
    assert len(executor.asked) == len(formed)
    assert {one.reports[a.receipt][0] for a in malformed} == {0.0}
    assert any(one.reports[a.receipt][0] > 1 for a in formed)
    assert [len(batch) for batch in one.trained] == [6, 6, 6]


def test_the_guide_reads_a_summary_and_the_executor_the_parent(played):
    one, executor = played
    nodes = one.committed["search"]["archive"]["nodes"]
    texts = {node["solution"]["text"] for node in nodes} - {""}
    later = [r["prompt"] for r in one.requests if r["tags"]["step"] != "0"]
    assert any("An attempt has the value" in prompt for prompt in later)
    for prompt in later:
        assert not any(text in prompt for text in texts)
    assert any("Before: " in text for text, _, _ in executor.asked)
    for text, purpose, params in executor.asked:
        assert "Follow this guidance:\n" in text
        assert purpose == "execute guidance"
        assert params == {"temperature": 0.0, "max_tokens": 8192}


def test_the_best_solution_is_the_executors(played):
    one, _ = played
    best = one.committed["search"]["published"]
    assert best == max(score for score, _ in one.reports.values())
    assert one.solutions


def durable(one):
    rewards = {key: one.reports[a.receipt] for key, a in one.asked.items()}
    return {"state": one.committed, "rewards": rewards, "steps": len(one.trained)}


def test_a_kill_at_any_effect_asks_the_executor_once_for_an_answer_that_counts(monkeypatch):
    """Its answers differ each time: a solution that was kept is not made again."""
    # Drawing was two thirds of the time; `played` has the real picture.
    monkeypatch.setattr(row_pattern, "draw_png", lambda packing, title: title.encode())
    counted = seek(world(), Executor())
    assert counted > 100
    for kill_at in range(0, counted, 3):
        one, executor = world(), Executor()
        with pytest.raises(Killed):
            seek(one, executor, kill_at)
        before = {k: v for k, v in one.committed.items() if k.startswith("executed-")}
        asked = len(executor.asked)
        formed = sum(a.text.startswith("<") for a in one.asked.values())
        # Lost between the executor's answer and the commit: one at most for each that runs.
        assert asked - formed <= one.recipe.knobs.verify_in_flight
        seek(one, executor)
        end = durable(one)
        formed = sum(a.text.startswith("<") for a in one.asked.values())
        assert len(executor.asked) - formed <= one.recipe.knobs.verify_in_flight, kill_at
        assert len(end["rewards"]) == 18
        assert end["steps"] == 3
        assert not [key for key in one.committed if key.startswith("executed-")]
        for key, text in before.items():
            found = one.recipe.task.score(text)
            assert one.reports[key.removeprefix("executed-")][0] == found.reward


@pytest.mark.parametrize("fault", [ModelFailed("it is away"), BudgetSpent("no calls left")])
def test_an_error_of_the_executor_stops_the_step_and_is_no_reward(fault):
    one, executor = world(), Executor()
    executor.fault = fault
    with pytest.raises(type(fault), match=str(fault)):
        seek(one, executor)
    assert one.reports == {}
    assert one.committed == {}
    executor.fault = None
    seek(one, executor)
    assert len(one.reports) == 18
    assert len(one.requests) == 18  # the guide was not asked again


def test_an_error_of_the_verifier_stops_the_step(monkeypatch):
    one, executor = world(), Executor()

    async def fail(self, answer, ctx):
        raise RuntimeError("no verifier")

    with monkeypatch.context() as patch:
        patch.setattr(type(one.recipe.task), "verify", fail)
        with pytest.raises(RuntimeError, match="no verifier"):
            seek(one, executor)
    assert one.reports == {}
    asked = len(executor.asked)
    assert asked > 0
    seek(one, executor)
    assert len(one.reports) == 18


def test_a_missing_executor_is_named():
    with pytest.raises(BadConfig, match="no model 'executor'"):
        seek(world(), None)


def test_another_executor_is_another_search(played):
    one, executor = played
    other = World(recipe(executor_max_tokens=99), guide, committed=one.committed)
    with pytest.raises(BadConfig, match="verifier was"):
        seek(other, executor)


def test_the_example_searches_with_a_rule_as_executor():
    (binding,) = load(EXAMPLE).reef
    made = load_recipe(binding.recipe, {**binding.knobs, "steps": 2})

    def counts(prompt, seed):
        return "".join(random.Random(f"{prompt} {seed}").choice("234567") for _ in range(6))

    one = World(made, counts)
    seek(one, None)
    assert [len(batch) for batch in one.trained] == [8, 8]
    for asked in one.asked.values():
        packing = packing_of(execute(asked.text, SEED), 26)
        score = one.reports[asked.receipt][0]
        assert (score == 0.0) == (packing is None)
        if packing is not None:
            assert score == pytest.approx(sum(packing.radii))


def test_the_rule_builds_whole_patterns():
    for counts in ("345454", "555555", "727272"):
        digits = execute(counts, SEED)
        assert is_pattern(digits)
        assert digits[::3] == counts
    assert sum(packing_of(execute("545454", SEED), 26).radii) > 2.2


@pytest.mark.engine
def test_the_step_leaves_thoughts_alone(tmp_path):
    """A thought whose tokens carry no advantage against the same answer without a form."""
    import torch

    from reefcommon.events import Sampling
    from reefstack.models import prepare
    from tests.recipes.samples import sample

    base = prepare("tiny", tmp_path / "models", lambda _f, _t: None)
    learner = recipe(kl_coef=0.0, target_modules=["lm_head"]).learner(base)
    ids = {learner._decode(token): token for token in range(256)}
    seen = []
    inner = learner.policy.score

    def units(text):
        response = tuple(ids[letter] for letter in text)
        return [
            sample(
                i,
                tokens=(257, *response),
                prompt_length=1,
                loss_mask=(1,) * len(response),
                logprobs=(-5.0,) * len(response),
                sampling=(Sampling(),),
                metadata={"group": 0},
                score=float(i),
            )
            for i in range(3)
        ]

    def spy(rollouts):
        scored = inner(rollouts)
        scored.logp_BR.retain_grad()
        seen.append(scored.logp_BR)
        return scored

    learner.policy.score = spy
    thought, block = "<think>ab</think>", "<guidance>cd</guidance>"
    learner.policy.base_logp = lambda rollouts: torch.zeros(
        len(rollouts), len(rollouts[0].response)
    )
    learner.step(units(thought + block))
    gradient = seen[-1].grad.abs().sum(0)
    assert gradient[: len(thought)].sum() == 0
    assert (gradient[len(thought) :] > 0).all()
    learner.step(units(thought + "cd"))
    assert (seen[-1].grad.abs().sum(0) > 0).all()
