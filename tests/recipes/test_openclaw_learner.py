"""OpenClaw-RL's step: the terms of each row, clipping, micro-batches that change nothing."""

import pytest
import torch

from recipes.openclaw_rl.knobs import Knobs
from reefcommon.events import Signal
from tests.recipes.bandit import ALL_LINEAR, START, write_model
from tests.recipes.turns import turn

pytestmark = pytest.mark.engine
HINT = ({"role": "user", "content": "a hint"},)
HINTED = (START, 20, 21, 11)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("bandit"))


def learner(model_path, monkeypatch, **knobs):
    from recipes.openclaw_rl.learner import OpenClawRLLearner

    defaults = {"policy_lr": 1e-2, "target_modules": ALL_LINEAR, "teacher_top_k": 5}
    made = OpenClawRLLearner(Knobs(**(defaults | knobs)), model_path)
    monkeypatch.setattr(made.tokenizer, "prompt", lambda _messages, _unit: HINTED)
    return made


def unit(number=0, *, score=-1.0, teacher=HINT, response=(3, 7), prompt=(START, 11), logprobs=None):
    return turn(
        number,
        tokens=(*prompt, *response),
        prompt_length=len(prompt),
        loss_mask=(1,) * len(response),
        logprobs=logprobs or (-3.3,) * len(response),
        signal=Signal(score=score, words="a hint" if teacher else "", teacher=teacher),
    )


def adapter(made):
    return {name: tensor.detach().clone() for name, tensor in made.policy.adapter().items()}


def moved(before, after) -> float:
    return max(float((before[name] - after[name]).abs().max()) for name in before)


@pytest.mark.parametrize(
    ("score", "teacher", "rl", "opd"),
    [(-1.0, HINT, True, True), (0.0, HINT, False, True), (1.0, (), True, False)],
)
def test_each_row_trains_its_terms(model_path, monkeypatch, score, teacher, rl, opd):
    made = learner(model_path, monkeypatch)
    found = made.step([unit(score=score, teacher=teacher)])
    assert bool(found.metrics["openclaw/rl_loss"]) == rl
    assert bool(found.metrics["openclaw/opd_loss"]) == opd
    assert found.metrics["policy_grad_norm"] > 0


def test_an_objective_leaves_the_other_term_out(model_path, monkeypatch):
    for objective, changed in (("opd", {"score": 1.0}), ("binary", {"teacher": ()})):
        states = []
        for changes in ({}, changed):
            made = learner(model_path, monkeypatch, objective=objective)
            made.step([unit(**changes)])
            states.append(adapter(made))
        assert moved(*states) == 0.0, objective


@pytest.mark.parametrize("distillation", ["jsd", "forward_kl", "topk_select"])
def test_a_hint_moves_the_policy_to_what_the_hinted_base_says(
    model_path, monkeypatch, distillation
):
    made = learner(
        model_path, monkeypatch, objective="opd", distillation=distillation, student_top_k=27
    )
    read: list[tuple[int, ...]] = []
    hidden = made.teacher.hidden

    def seen(rollouts):
        read.extend(one.prompt for one in rollouts)
        return hidden(rollouts)

    monkeypatch.setattr(made.teacher, "hidden", seen)
    # The random base says nothing clearly: this teacher says 7.
    clear = 5.0 * torch.nn.functional.one_hot(torch.tensor(7), 27)
    monkeypatch.setattr(made.teacher, "logits", lambda hidden: clear.expand(len(hidden), -1))

    @torch.no_grad()
    def says_7(model) -> float:
        logits = model.causal(input_ids=torch.tensor([[START, 11]])).logits[0, -1]
        return float(torch.softmax(logits, -1)[7])

    base = says_7(made.teacher)
    assert says_7(made.policy) == base < 0.1
    for _ in range(30):
        made.step([unit(response=(n,)) for n in range(8)])
    assert says_7(made.policy) > 0.6
    assert says_7(made.teacher) == base, "the base never moves"
    assert set(read) == {HINTED}


def test_micro_batches_change_nothing(model_path, monkeypatch):
    batch = [
        unit(0),
        unit(1, teacher=(), score=1.0, response=(1, 2, 3, 4)),
        unit(2, prompt=(START, 20, 21, 22, 23, 11), response=(9,)),
        unit(3, score=0.0, response=(5, 6, 7)),
    ]
    states = []
    for tokens in (1, 4096):
        made = learner(model_path, monkeypatch, micro_batch_tokens=tokens, chunk_positions=3)
        made.step(batch)
        states.append(adapter(made))
    assert moved(*states) < 2e-4


def test_the_batch_mean_is_subtracted_if_asked_for():
    from recipes.openclaw_rl.learner import credit

    assert credit([1.0, -1.0, -1.0, -1.0], Knobs()) == [1.0, -1.0, -1.0, -1.0]
    assert credit([1.0, -1.0, -1.0, -1.0], Knobs(reward_baseline="batch_mean")) == [
        1.5,
        -0.5,
        -0.5,
        -0.5,
    ]


def test_a_turn_without_a_vote_has_no_part_in_the_baseline():
    from recipes.openclaw_rl.learner import credit

    mean = Knobs(reward_baseline="batch_mean")
    assert credit([1.0, 0.0, -1.0, -1.0, -1.0, 0.0], mean) == [1.5, 0.0, -0.5, -0.5, -0.5, 0.0]
    assert credit([0.0, 0.0], mean) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 1.0, -1.0, -1.0),
        (1.5, 1.0, -1.28, 0.0),
        (0.5, 1.0, -0.5, -1.0),
        (0.5, -1.0, 0.8, 0.0),
        (1.5, -1.0, 1.5, 1.0),
    ],
)
def test_the_ratio_is_clipped_from_both_sides(ratio, advantage, loss, slope):
    from recipes.openclaw_rl.learner import clipped

    given = torch.tensor(ratio, requires_grad=True)
    found = clipped(given, torch.tensor(advantage), Knobs())
    found.backward()
    assert found.item() == pytest.approx(loss)
    assert float(given.grad) == pytest.approx(slope)


def test_the_difference_to_the_teacher_is_bounded_in_topk_select():
    from recipes.openclaw_rl.learner import taught

    student = torch.log_softmax(torch.tensor([[3.0, 2.0, 1.0, -9.0]]), -1).requires_grad_()
    teacher = torch.log_softmax(torch.tensor([[-9.0, -9.0, 9.0, 20.0]]), -1)
    found = taught(student, teacher, Knobs(distillation="topk_select", student_top_k=3))
    found.sum().backward()
    share = torch.softmax(student.detach()[0, :3], -1)
    gap = (teacher - student.detach())[0, :3].clamp(-1.0, 1.0)
    assert torch.allclose(student.grad[0, :3], -gap * share)
    assert float(student.grad[0, 3]) == 0.0, "a token outside of the student's likeliest"


def test_a_hint_that_is_too_long_leaves_the_vote(model_path, monkeypatch):
    found = learner(model_path, monkeypatch, max_teacher_tokens=5).step([unit()])
    assert found.metrics["openclaw/hints"] == 0.0
    assert found.metrics["openclaw/opd_loss"] == 0.0
    assert found.metrics["openclaw/rl_loss"] != 0.0


def test_a_saved_step_goes_on_to_the_bit(model_path, monkeypatch, tmp_path):
    first = learner(model_path, monkeypatch)
    first.step([unit()])
    first.save(tmp_path)
    first.step([unit(1)])
    second = learner(model_path, monkeypatch)
    second.load(tmp_path)
    assert second.step([unit(1)]).step == 2
    assert moved(adapter(first), adapter(second)) == 0.0
