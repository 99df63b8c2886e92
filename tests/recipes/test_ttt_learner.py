"""The step of TTT-Discover against its loss written out, on the tiny bandit model."""

import math
import random

import pytest
import torch

from recipes.ttt_discover.advantages import entropic, mean_baseline
from recipes.ttt_discover.grid import Place, metadata
from recipes.ttt_discover.knobs import Knobs
from reefcommon.errors import Poison
from reefcommon.events import Sampling
from tests.recipes.bandit import ALL_LINEAR, START, samples, write_model
from tests.recipes.samples import sample
from tests.recipes.test_learner import adapter

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("bandit"))


def learner(model_path, **knobs):
    from recipes.ttt_discover.learner import TTTDiscoverLearner

    defaults = {
        "groups_per_step": 2,
        "rollouts_per_group": 4,
        "policy_lr": 1e-3,
        "target_modules": ALL_LINEAR,
        "lora_r": 8,
    }
    return TTTDiscoverLearner(Knobs(**(defaults | knobs)), model_path)


def moved(one, size=0.05):
    """An adapter that does something."""
    generator = torch.Generator().manual_seed(3)
    for p in one.policy.model.parameters():
        if p.requires_grad:
            p.data += size * torch.randn(p.shape, generator=generator)
    return one


def batch(one, rewards=None, seed=0, **changes):
    """A grid, sampled by the learner's own policy."""
    generator = torch.Generator().manual_seed(seed)
    played = samples(one.policy.model, [11] * 4 + [14] * 4, 0, seed, generator)
    draw = random.Random(seed)
    rewards = rewards or [draw.random() for _ in played]
    return [
        unit.model_copy(
            update={
                "score": reward,
                "metadata": metadata(Place(0, i // 4, i % 4), one.knobs),
                **changes,
            }
        )
        for i, (unit, reward) in enumerate(zip(played, rewards, strict=True))
    ]


def gradient(one, units):
    """The gradient that a step would apply."""
    grads = {}

    def keep():
        for name, p in one.policy.model.named_parameters():
            if p.requires_grad:
                grads[name] = p.grad.clone()
        one.policy.optimizer.zero_grad(set_to_none=True)
        return 0.0

    one.policy.update = keep
    result = one.step(units)
    return grads, result.metrics


def by_hand(one, units, advantages, coef):
    """Sum over tokens of - exp(log pi - log q) * A_t, from plain forwards."""
    model = one.policy.model
    rows, gaps = [], []
    for unit in units:
        ids, at = torch.tensor([unit.tokens]), unit.prompt_length
        index = range(at - 1, len(unit.tokens) - 1), list(unit.tokens[at:])
        logp = torch.log_softmax(model(input_ids=ids).logits[0], -1)[index]
        with torch.no_grad(), model.disable_adapter():
            base = torch.log_softmax(model(input_ids=ids).logits[0], -1)[index]
        mask, q = torch.tensor(unit.loss_mask), torch.tensor(unit.logprobs)
        rows.append((logp, q, mask))
        gaps.append(torch.where(mask.bool(), q - base, 0.0))
    mean = sum(float(g.sum()) for g in gaps) / sum(sum(u.loss_mask) for u in units)
    loss = torch.zeros(())
    for (logp, q, mask), gap, advantage in zip(rows, gaps, advantages, strict=True):
        folded = advantage + coef * (mean - gap) * mask
        behaviour = torch.where(mask.bool(), q, logp.detach())
        loss = loss - ((logp - behaviour).exp() * folded).sum()
    model.zero_grad()
    loss.backward()
    wanted = {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}
    model.zero_grad()
    return wanted, float(loss.detach()), mean


@pytest.mark.parametrize("algorithm", ["entropic", "mean_baseline"])
@pytest.mark.parametrize("coef", [0.0, 0.3])
def test_the_gradient_is_that_of_the_token_sum(model_path, algorithm, coef):
    one = moved(learner(model_path, algorithm=algorithm, kl_coef=coef, micro_batch_tokens=9))
    # Behaviour of other weights: ratios that are not 1.
    units = batch(one)
    units = [
        unit.model_copy(update={"logprobs": tuple(x - 0.2 * (i % 3) for x in unit.logprobs)})
        for i, unit in enumerate(units)
    ]
    credit = entropic if algorithm == "entropic" else mean_baseline
    rewards = [unit.score for unit in units]
    advantages = credit(rewards[:4]) + credit(rewards[4:])
    wanted, loss, mean = by_hand(one, units, advantages, coef)
    found, metrics = gradient(one, units)
    assert metrics["policy_loss"] == pytest.approx(loss, rel=1e-4)
    assert metrics["ttt/base_kl"] == pytest.approx(mean, abs=1e-5)
    assert metrics["ttt/ratio_max"] == pytest.approx(math.exp(0.4), rel=1e-3)
    for name, tensor in wanted.items():
        assert torch.allclose(found[name], tensor, atol=1e-4, rtol=1e-3), name


def test_a_forced_token_carries_the_advantage_and_no_pull(model_path):
    one = moved(learner(model_path, kl_coef=0.5))
    units = [
        unit.model_copy(update={"loss_mask": (1, 0), "logprobs": (unit.logprobs[0], 0.0)})
        for unit in batch(one)
    ]
    rewards = [unit.score for unit in units]
    advantages = entropic(rewards[:4]) + entropic(rewards[4:])
    wanted, _, _ = by_hand(one, units, advantages, 0.5)
    found, _ = gradient(one, units)
    for name, tensor in wanted.items():
        assert torch.allclose(found[name], tensor, atol=1e-4, rtol=1e-3), name


def test_the_base_is_the_model_without_the_adapter(model_path):
    from recipes.policy_gradient.rollouts import rollout

    fresh, used = learner(model_path), moved(learner(model_path))
    rollouts = [rollout(unit) for unit in batch(fresh)]
    with torch.no_grad():
        expected = fresh.policy.score(rollouts).logp_BR
        assert torch.allclose(used.policy.base_logp(rollouts), expected, atol=1e-6)
        assert not torch.allclose(used.policy.score(rollouts).logp_BR, expected, atol=1e-2)
    # The adapter learns again afterwards.
    assert used.policy.score(rollouts).logp_BR.requires_grad


def test_constant_groups_give_no_gradient(model_path):
    one = learner(model_path, kl_coef=0.0)
    half = batch(one, rewards=[0.1, 0.4, 0.2, 0.3, *[0.7] * 4])
    both, metrics = gradient(one, half)
    assert metrics["ttt/constant_groups"] == 1
    assert metrics["batch_size"] == 8
    assert metrics["response_tokens"] == 8
    wanted, _, _ = by_hand(one, half[:4], entropic([0.1, 0.4, 0.2, 0.3]), 0.0)
    assert all(torch.allclose(both[n], t, atol=1e-4, rtol=1e-3) for n, t in wanted.items())


def test_a_grid_of_equal_rewards_is_a_step_that_changes_nothing(model_path):
    one = learner(model_path, kl_coef=0.0)
    before = adapter(one)
    result = one.step(batch(one, rewards=[0.5] * 8))
    assert (result.step, result.action) == (1, "step")
    assert result.metrics["ttt/constant_groups_retained"] == 1
    assert result.metrics["ttt/constant_groups"] == 2
    assert result.metrics["policy_grad_norm"] < 1e-8
    for name, tensor in adapter(one).items():
        assert torch.allclose(tensor, before[name], atol=1e-6), name


def test_the_gradient_is_not_clipped_by_default(model_path):
    loose, tight = learner(model_path), learner(model_path, max_grad_norm=1e-3)
    norms = [one.step(batch(one)).metrics["policy_grad_norm"] for one in (loose, tight)]
    assert norms[0] == pytest.approx(norms[1])
    assert norms[0] > 0.1
    (group,) = loose.policy.optimizer.param_groups
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.95), 1e-8, 0.0)


def test_micro_batches_give_the_same_step(model_path):
    whole, parts = learner(model_path), learner(model_path, micro_batch_tokens=9)
    units = batch(whole)
    first, second = whole.step(units), parts.step(units)
    assert first.metrics == pytest.approx(second.metrics, rel=1e-3, abs=1e-5)
    for name, tensor in adapter(whole).items():
        assert torch.allclose(tensor, adapter(parts)[name], atol=1e-4), name


def test_a_masked_rollout_trains_on_its_mask(model_path):
    """The ratio of a rollout that was sampled from four tokens is 1 under the same four."""
    one = moved(learner(model_path))
    allowed = (3, 4, 5, 7)
    units = []
    for i in range(8):
        ids = torch.tensor([[START, 11, allowed[i % 4]]])
        with torch.no_grad():
            logits = one.policy.model(input_ids=ids).logits[0, 1]
        logp = torch.log_softmax(logits[list(allowed)], -1)[i % 4].item()
        units.append(
            sample(
                i,
                tokens=(START, 11, allowed[i % 4]),
                prompt_length=2,
                loss_mask=(1,),
                logprobs=(min(logp, 0.0),),
                score=i / 8,
                metadata=metadata(Place(0, i // 4, i % 4), one.knobs),
                sampling=(Sampling(allowed_token_ids=allowed),),
            )
        )
    metrics = one.step(units).metrics
    assert metrics["ttt/ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["train_rollout_logprob_abs_diff"] < 1e-4
    assert 0 < metrics["entropy"] <= math.log(4) + 1e-5


def test_a_step_reports_the_named_metrics(model_path):
    from reefcommon.metrics import STEP_METRICS

    one = learner(model_path)
    names = {n for n in STEP_METRICS if not n.startswith("critic/")}
    assert set(one.step(batch(one)).metrics) == names


def test_a_batch_without_places_is_poison(model_path):
    one = learner(model_path)
    with pytest.raises(Poison, match="no group"):
        one.step(batch(one, metadata={}))


def test_the_bandit_is_learned_by_its_best_answers(model_path):
    """A few steps of the whole method: the mean reward rises."""
    from tests.recipes.bandit import ANSWERS, reward

    one = learner(model_path, rollouts_per_group=16, policy_lr=3e-3, lora_r=32, lora_alpha=32)
    generator, curve = torch.Generator().manual_seed(0), []
    for step in range(60):
        letters = [letter for letter in list(ANSWERS)[:2] for _ in range(16)]
        played = samples(one.policy.model, letters, step, step, generator)
        units = [
            unit.model_copy(update={"metadata": metadata(Place(step, i // 16, i % 16), one.knobs)})
            for i, unit in enumerate(played)
        ]
        assert units[0].score == reward(letters[0], units[0].tokens[2:])
        curve.append(sum(unit.score for unit in units) / len(units))
        one.step(units)
    assert sum(curve[:6]) / 6 < 0.25
    assert sum(curve[-6:]) / 6 > sum(curve[:6]) / 6 + 0.2
