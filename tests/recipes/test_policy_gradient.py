"""The arithmetic of the policy-gradient recipes, checked by hand."""

import pytest
import torch

from recipes.policy_gradient.losses import dis_weight, policy_loss, sample_mean
from recipes.policy_gradient.returns import (
    explained_variance,
    group_advantages,
    length_adaptive_lambda,
    skip_observation_gae,
)
from recipes.policy_gradient.rollouts import micro_batches, rollout, unfit
from recipes.sao.knobs import Knobs
from recipes.sao.learner import correction, credit
from reefcommon.errors import Poison
from reefcommon.events import Sampling
from tests.recipes.samples import sample


def test_gae_steps_over_observations():
    """Actions at 0, 1, 4; a tool's answer at 2 and 3. By hand, gamma 1, lambda 0.5, reward 1 on
    the last action.

    delta_4 = 1 - 0.6 = 0.4 A_4 = 0.4 delta_1 = 0.6 - 0.5 = 0.1 A_1 = 0.1 + 0.5 * 0.4 = 0.3
    delta_0 = 0.5 - 0.2 = 0.3 A_0 = 0.3 + 0.5 * 0.3 = 0.45
    """
    advantages, returns = skip_observation_gae(
        (1, 1, 0, 0, 1), (0.2, 0.5, 9.0, -9.0, 0.6), 1.0, gamma=1.0, lam=0.5
    )
    assert advantages == pytest.approx([0.45, 0.3, 0.0, 0.0, 0.4])
    assert returns == pytest.approx([0.65, 0.8, 0.0, 0.0, 1.0])


def test_reward_falls_on_the_last_action_not_on_an_observation():
    advantages, _ = skip_observation_gae((1, 0), (0.25, 5.0), 1.0, gamma=1.0, lam=1.0)
    assert advantages == pytest.approx([0.75, 0.0])


def test_discount_and_monte_carlo_returns():
    """lambda 1: the return of every action is the discounted reward, whatever the critic thinks."""
    _, returns = skip_observation_gae((1, 1, 1), (3.0, -2.0, 0.5), 2.0, gamma=0.5, lam=1.0)
    assert returns == pytest.approx([0.5, 1.0, 2.0])


@pytest.mark.parametrize(
    ("actions", "expected"), [(0, 0.0), (1, 1 / 3), (2, 2 / 3), (100, 1 - 1 / 150)]
)
def test_length_adaptive_lambda(actions, expected):
    assert length_adaptive_lambda(actions, 1.5) == pytest.approx(expected)


def test_length_adaptive_lambda_is_clipped_for_a_small_alpha():
    assert length_adaptive_lambda(1, 0.5) == 0.0


def test_actor_and_critic_have_lambdas_of_their_own():
    advantages, returns = credit((1, 1), (0.0, 0.4), 1.0, Knobs())
    assert advantages == pytest.approx([0.4 + 2 / 3 * 0.6, 0.6])
    assert returns == pytest.approx([1.0, 1.0])


def test_dis_bounds_are_strict_and_carry_no_gradient():
    ratio = torch.tensor([0.5, 0.50001, 1.0, 2.9999, 3.0, torch.inf], requires_grad=True)
    weight = dis_weight(ratio, 0.5, 2.0)
    assert weight.tolist() == pytest.approx([0.0, 0.50001, 1.0, 2.9999, 0.0, 0.0])
    assert not weight.requires_grad


@pytest.mark.parametrize(
    ("arm", "weights"),
    [("dis", [0.0, 1.0, 0.0]), ("ratio", [0.1, 1.0, 9.0]), ("none", [1.0, 1.0, 1.0])],
)
def test_the_arms_of_the_correction(arm, weights):
    ratio = torch.tensor([0.1, 1.0, 9.0], requires_grad=True)
    weight = correction(ratio, Knobs(correction=arm))
    assert weight.tolist() == pytest.approx(weights)
    assert not weight.requires_grad


def test_aggregation_is_a_mean_over_tokens_then_over_samples():
    """A rollout of one token weighs as much as one of three; padding and observations do not
    count.
    """
    per_token = torch.tensor([[6.0, 100.0, 100.0], [1.0, 2.0, 3.0]])
    mask = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    assert sample_mean(per_token, mask).item() == pytest.approx((6.0 + 2.0) / 2)


def test_a_masked_token_stays_in_the_denominator():
    logp = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    ones = torch.ones(1, 2)
    loss = policy_loss(logp, ones, torch.tensor([[0.0, 1.5]]), torch.tensor([[2.0, 2.0]]), ones)
    loss.backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == [[0.0, pytest.approx(-1.5 * 2.0 / 2)]]


def test_group_advantages():
    assert group_advantages([1.0, 0.0, 0.0, 1.0]) == pytest.approx([1.0, -1.0, -1.0, 1.0])
    assert group_advantages([0.3, 0.3]) is None


def test_explained_variance():
    assert explained_variance([1.0, 2.0], [1.0, 2.0]) == pytest.approx(1.0)
    assert explained_variance([0.0, 0.0], [1.0, 1.0]) == 0.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"score": None}, "no_score"),
        ({"untrainable": "length_mismatch"}, "untrainable: length_mismatch"),
        ({"loss_mask": (0, 0, 0)}, "empty_loss_mask"),
        ({"loss_mask": (1, 1)}, "length_mismatch"),
        ({"logprobs": (-0.1, -0.1)}, "length_mismatch"),
        ({"loss_mask": (1, 2, 0)}, "malformed_loss_mask"),
        ({"logprobs": (-0.1, float("-inf"), -0.1)}, "malformed_logprobs"),
        ({"tokens": (1, 2), "loss_mask": (), "logprobs": ()}, "no_tokens"),
        ({"prompt_length": 0, "loss_mask": (1,) * 5, "logprobs": (-0.1,) * 5}, "no_tokens"),
        ({"temperature": 0.0}, "sampled_greedily"),
        ({"score": 1e30}, "score_out_of_range: 1e+30"),
        ({"score": -1e200}, "score_out_of_range: -1e+200"),
        ({"score": 100.5}, "score_out_of_range: 100.5"),
        ({"sampling": (Sampling(), Sampling(top_p=0.9))}, "truncated_sampling: top_p"),
        ({"sampling": (Sampling(top_k=40),)}, "truncated_sampling: top_k"),
        ({"sampling": (Sampling(min_p=0.01),)}, "truncated_sampling: min_p"),
        ({"sampling": (Sampling(presence_penalty=-1),)}, "truncated_sampling: presence_penalty"),
        ({"sampling": (Sampling(frequency_penalty=2),)}, "truncated_sampling: frequency_penalty"),
        (
            {"sampling": (Sampling(repetition_penalty=1.1),)},
            "truncated_sampling: repetition_penalty",
        ),
        ({"sampling": (Sampling(min_tokens=1),)}, "truncated_sampling: min_tokens"),
        ({"sampling": (Sampling(logit_bias=True),)}, "truncated_sampling: logit_bias"),
        ({"sampling": (Sampling(constrained=True),)}, "truncated_sampling: constrained"),
        (
            {"sampling": (Sampling(allowed_token_ids=(3, 4)),)},
            "truncated_sampling: allowed_token_ids",
        ),
    ],
)
def test_what_cannot_be_trained_on_has_a_name(changes, reason):
    """T4: an empty mask is an error with a name, and so is everything else that is wrong with a
    sample.
    """
    bad = sample(**changes)
    assert unfit(bad) == reason
    with pytest.raises(Poison, match="cannot be trained on"):
        rollout(bad)


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": (Sampling(temperature=0.5), Sampling(top_k=-1))},
        {"sampling": ()},
        {"score": -100.0},
    ],
)
def test_samples_that_can_be_corrected_are_fit(changes):
    assert unfit(sample(**changes)) is None


def test_a_recipe_may_say_that_it_corrects_a_mask():
    mask, other = Sampling(allowed_token_ids=(3, 4, 5)), Sampling(allowed_token_ids=(3,))
    corrects = ("allowed_token_ids",)
    masked = sample(sampling=(mask, mask))
    assert unfit(masked, corrects=corrects) is None
    assert rollout(masked, corrects=corrects).allowed == (3, 4, 5)
    assert rollout(sample(sampling=(Sampling(),))).allowed == ()
    assert unfit(sample(sampling=(mask, other)), corrects=corrects) == "mixed_allowed_token_ids"
    assert unfit(sample(sampling=(mask, Sampling())), corrects=corrects) == (
        "mixed_allowed_token_ids"
    )
    penalised = mask.model_copy(update={"top_k": 4})
    assert unfit(sample(sampling=(penalised,)), corrects=corrects) == "truncated_sampling: top_k"


@pytest.mark.parametrize("great", [1e30, 1e200, 1.7e308])
def test_group_advantages_of_great_rewards_do_not_overflow(great):
    assert group_advantages([great, 0.0]) == pytest.approx([1.0, -1.0])
    assert group_advantages([great, great]) is None


def test_micro_batches_hold_every_rollout_once_within_the_budget():
    rollouts = [
        rollout(
            sample(i, tokens=(1, 2, *range(3, 3 + n)), loss_mask=(1,) * n, logprobs=(-0.1,) * n)
        )
        for i, n in enumerate((9, 1, 4, 2, 30))
    ]
    groups = micro_batches(rollouts, 14)
    assert sorted(i for group in groups for i in group) == [0, 1, 2, 3, 4]
    for group in groups:
        padded = len(group) * max(
            len(rollouts[i].prompt) + len(rollouts[i].response) for i in group
        )
        assert padded <= 14 or len(group) == 1
