"""The arithmetic of distillation: divergences, weights, lessons, siblings, admission."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.distillation.divergences import (
    divergence,
    forward_kl,
    jsd,
    restrict,
    reverse_kl,
    sampled_reverse_kl,
)
from recipes.distillation.lessons import TeacherContext, lesson, skipped, too_long
from recipes.distillation.messages import (
    answer_text,
    demonstration_in,
    prompt_messages,
    with_demonstration,
    without_thoughts,
    words_in,
)
from recipes.distillation.weights import importance, masked_mean
from recipes.sdft.knobs import Knobs as SDFTKnobs
from recipes.sdpo.siblings import siblings
from reefcommon.errors import Poison
from tests.recipes.samples import sample

logits = st.lists(st.floats(-8, 8), min_size=5, max_size=5)
KINDS = ("forward_kl", "reverse_kl", "jsd")


def log_softmax(values, dtype=torch.float64):
    return torch.log_softmax(torch.tensor([values], dtype=dtype), -1)


def naive(kind, p, t, beta):
    """Sums of plain floats."""

    def kl(a, b):
        return math.fsum(x * math.log(x / y) for x, y in zip(a, b, strict=True))

    m = [beta * y + (1 - beta) * x for x, y in zip(p, t, strict=True)]
    return {
        "forward_kl": kl(t, p),
        "reverse_kl": kl(p, t),
        "jsd": beta * kl(t, m) + (1 - beta) * kl(p, m),
    }[kind]


@settings(max_examples=60, deadline=None)
@given(student=logits, teacher=logits, beta=st.floats(0.05, 0.95))
@pytest.mark.parametrize("kind", KINDS)
def test_a_divergence_equals_the_naive_sum(kind, student, teacher, beta):
    p, t = log_softmax(student), log_softmax(teacher)
    expected = naive(kind, p.exp()[0].tolist(), t.exp()[0].tolist(), beta)
    assert divergence(p, t, kind, beta).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(student=logits, teacher=logits)
@pytest.mark.parametrize("kind", KINDS)
def test_a_divergence_is_zero_only_between_equals(kind, student, teacher):
    p, t = log_softmax(student), log_softmax(teacher)
    assert divergence(p, p, kind).item() == pytest.approx(0.0, abs=1e-12)
    apart = divergence(p, t, kind).item()
    assert apart >= -1e-12
    if (p - t).abs().max() > 1e-2 and min(p.min(), t.min()) > -10:
        assert apart > 0


def test_jsd_is_symmetric_in_the_middle_and_bounded():
    p, t = log_softmax([9.0, 0, 0, 0, 0]), log_softmax([0, 0, 0, 0, 9.0])
    assert jsd(p, t, 0.5).item() == pytest.approx(jsd(t, p, 0.5).item())
    assert 0.9 * math.log(2) < jsd(p, t, 0.5).item() < math.log(2)


@pytest.mark.parametrize("rest", ["tail", "renormalized"])
@settings(max_examples=60, deadline=None)
@given(values=logits, k=st.integers(1, 5))
def test_a_restricted_distribution_has_mass_one(values, k, rest):
    logp = log_softmax(values)
    kept = restrict(logp, logp.topk(k).indices, rest)
    assert kept.shape[-1] == k + (rest == "tail")
    assert kept.exp().sum().item() == pytest.approx(1.0, abs=2e-7)
    if rest == "tail" and k < 5:
        left = 1 - logp.exp().topk(k).values.sum().item()
        assert kept[0, -1].exp().item() == pytest.approx(left, abs=2e-7)


@settings(max_examples=40, deadline=None)
@given(student=logits, teacher=logits, k=st.integers(1, 4))
@pytest.mark.parametrize("kind", KINDS)
def test_buckets_never_show_more_than_the_whole(kind, student, teacher, k):
    """The inequality of data processing: merging ids into a tail loses distance."""
    p, t = log_softmax(student), log_softmax(teacher)
    ids = p.topk(k).indices
    merged = divergence(restrict(p, ids, "tail"), restrict(t, ids, "tail"), kind)
    assert merged.item() <= divergence(p, t, kind).item() + 1e-5


def test_all_ids_kept_make_no_tail():
    p = log_softmax([1.0, 2.0, 3.0, 0.0, -1.0], torch.float32)
    kept = restrict(p, p.topk(5).indices, "tail")
    assert torch.isfinite(kept).all()
    assert kept[0, -1] < -15


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rest", [None, "tail", "renormalized"])
def test_gradients_are_those_of_finite_differences(kind, rest):
    draw = torch.Generator().manual_seed(3)
    student = torch.randn(4, 6, generator=draw, dtype=torch.float64, requires_grad=True)
    teacher = torch.log_softmax(torch.randn(4, 6, generator=draw, dtype=torch.float64), -1)
    ids = torch.log_softmax(student, -1).topk(3).indices

    def loss(student):
        p, t = torch.log_softmax(student, -1), teacher
        if rest:
            p, t = restrict(p, ids, rest), restrict(t, ids, rest)
        return divergence(p, t, kind, 0.3)

    assert torch.autograd.gradcheck(loss, (student,))


def test_sampled_tokens_give_the_gradient_of_the_reverse_kl():
    """The expectation over y ~ p, by enumeration, is the exact gradient and the exact value."""
    draw = torch.Generator().manual_seed(5)
    student = torch.randn(1, 6, generator=draw, dtype=torch.float64, requires_grad=True)
    t = torch.log_softmax(torch.randn(1, 6, generator=draw, dtype=torch.float64), -1)
    p = torch.log_softmax(student, -1)
    value = reverse_kl(p, t).sum()
    (exact,) = torch.autograd.grad(value, student, retain_graph=True)
    estimate = (p.detach().exp() * sampled_reverse_kl(p, t)).sum()
    (sampled,) = torch.autograd.grad(estimate, student)
    assert estimate.item() == pytest.approx(value.item())
    assert torch.allclose(sampled, exact)


def test_forward_kl_keeps_its_gradient_to_the_student():
    teacher = torch.randn(1, 4, requires_grad=True)
    student = torch.randn(1, 4, requires_grad=True)
    t = torch.log_softmax(teacher, -1).detach()
    forward_kl(torch.log_softmax(student, -1), t).sum().backward()
    assert student.grad is not None
    assert teacher.grad is None


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("none", [[1.0, 1.0, 1.0]]),
        ("token", [[2.0, 0.5, 2.0]]),
        ("sequence", [[1.25, 1.25, 1.25]]),
    ],
)
def test_importance_weights_are_capped_and_carry_no_gradient(kind, expected):
    """Ratios 4, 0.5 and exp(50); the third token is not trained."""
    logp = torch.tensor([[math.log(4.0), math.log(0.5), 50.0]], requires_grad=True)
    weight = importance(logp, torch.zeros(1, 3), torch.tensor([[1.0, 1.0, 0.0]]), kind, 2.0)
    assert weight.tolist() == [pytest.approx(expected[0])]
    assert not weight.requires_grad


def test_an_extreme_ratio_stays_finite():
    logp = torch.tensor([[-1000.0, 1000.0]])
    weight = importance(logp, torch.zeros(1, 2), torch.ones(1, 2), "token", 1e9)
    assert weight.tolist() == [pytest.approx([math.exp(-20), math.exp(20)], rel=1e-5)]


def test_the_mean_of_an_empty_mask_is_zero():
    value = torch.ones(2, 2, requires_grad=True)
    mean = masked_mean(value, torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    assert mean.tolist() == [0.0, 1.0]
    mean.sum().backward()
    assert torch.isfinite(value.grad).all()


# ------------------------------------------------------------------ lessons


@pytest.mark.parametrize(
    ("mask", "count", "left"),
    [
        ((1, 1, 1), 0, (1, 1, 1)),
        ((1, 1, 1), 2, (0, 0, 1)),
        ((1, 1), 5, (0, 0)),
        ((1, 0, 0, 1, 1), 2, (0, 0, 0, 0, 1)),
    ],
)
def test_the_first_sampled_tokens_are_skipped(mask, count, left):
    assert skipped(mask, count) == left


def prompt(messages, _unit):
    return tuple(range(100, 100 + len(messages[-1]["content"])))


def test_the_teacher_reads_the_same_answer_under_its_own_prompt():
    hinted = TeacherContext(({"role": "user", "content": "abcd"},))
    one = lesson(sample(), hinted, SDFTKnobs(skip_tokens=1), prompt)
    assert one.student.prompt == (1, 2)
    assert one.teacher.prompt == (100, 101, 102, 103)
    assert one.student.response == one.teacher.response == (3, 4, 5)
    assert one.student.mask == (0, 1, 1)
    assert (too_long(one, 6), too_long(one, 7)) == (True, False)


def test_without_a_context_the_teacher_reads_the_students_prompt():
    one = lesson(sample(score=None), TeacherContext(), SDFTKnobs(), prompt)
    assert one.teacher.prompt == (1, 2)
    assert one.student.reward == 0.0
    assert not one.trained  # three tokens, all of them skipped


def test_a_truncated_unit_is_no_lesson():
    with pytest.raises(Poison, match="sampled_greedily"):
        lesson(sample(temperature=0.0), TeacherContext(), SDFTKnobs(), prompt)


def chat(*contents):
    roles = ("system", "user", "assistant", "user", "assistant")
    return tuple({"role": r, "content": c} for r, c in zip(roles, contents, strict=False))


def test_the_prompt_of_a_unit_ends_before_its_own_answers():
    whole = chat("s", "u1", "a1", "u2", "a2")
    assert prompt_messages(sample(messages=whole)) == whole[:4]
    assert prompt_messages(sample(messages=whole, record_ids=("a", "b"))) == whole[:2]
    assert prompt_messages(sample(messages=whole, record_ids=("a", "b", "c"))) == whole[:2]
    assert prompt_messages(sample(messages=whole[:2])) == whole[:2]
    assert prompt_messages(sample()) == ()


def test_a_demonstration_goes_into_the_last_user_message():
    given = with_demonstration(chat("s", "u {demonstration}"), "d", "{prompt} | {demonstration}")
    assert given == chat("s", "u {demonstration} | d")
    assert with_demonstration((), "d", "<{demonstration}>") == ({"role": "user", "content": "<d>"},)
    parts = ({"role": "user", "content": [{"type": "text", "text": "look"}]},)
    assert with_demonstration(parts, "d", "{prompt}:{demonstration}")[0]["content"] == "look:d"


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("<think>so\nso</think>\n7", "7"),
        ("so, so</think>7", "7"),
        (" 7 ", "7"),
        ("<think>", "<think>"),
    ],
)
def test_thoughts_are_left_out_of_an_attempt(said, left):
    assert without_thoughts(said) == left


def test_a_demonstration_comes_from_metadata_or_feedback():
    assert demonstration_in(sample(metadata={"demonstration": "m"})) == "m"
    assert demonstration_in(sample(feedback={"demonstration": "f"})) == "f"
    assert demonstration_in(sample(feedback="better luck")) is None
    assert demonstration_in(sample(metadata={"demonstration": 7})) is None
    assert words_in(sample(feedback="better luck")) == "better luck"
    assert words_in(sample(feedback={"text": "t"})) == "t"


def attempt(number, score, answer, first=1):
    messages = ({"role": "user", "content": "q"}, {"role": "assistant", "content": answer})
    return sample(number, score=score, tokens=(first, 2, 3, 4, 5), messages=messages)


def test_an_attempt_learns_from_the_first_right_sibling():
    units = [
        attempt(0, 0.0, "wrong"),
        attempt(1, 1.0, "right"),
        attempt(2, 0.5, "also"),
        attempt(3, 1.0, "other prompt", first=9),
        attempt(4, 0.0, "alone", first=8),
    ]
    found = siblings(units, 0.5, "{prompt}:{demonstration}")
    words = [one.messages[-1]["content"] if one.messages else None for one in found]
    assert words == ["q:right", "q:also", "q:right", None, None]
    assert [one.weight for one in found] == [1.0, 1.0, 1.0, 0.0, 0.0]


def test_a_right_attempt_without_text_teaches_nobody():
    units = [sample(0, score=0.0), sample(1, score=1.0)]
    assert [one.weight for one in siblings(units, 0.5, "{demonstration}")] == [0.0, 0.0]
    assert answer_text(sample(messages=({"role": "user", "content": "q"},))) == ""


def test_a_template_gets_messages_as_the_engine_gives_them():
    from recipes.distillation.tokens import template_form
    from services.engine.domain.messages import template_messages

    def call(arguments):
        return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}

    messages = [
        {"role": "developer", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call('{"x": 1}'), call('{"x": ')]},
        {"role": "tool", "content": "4", "tool_call_id": "c"},
        {"role": "assistant", "content": "done", "tool_calls": None, "refusal": None},
    ]
    assert [template_form(message) for message in messages] == template_messages(messages)
    assert messages[2]["tool_calls"][0] == call('{"x": 1}'), "the unit itself is unchanged"
