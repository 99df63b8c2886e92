"""The learner: exact log-probabilities, micro-batches that change nothing, saved state that
continues to the bit.
"""

import json
import shutil

import pytest
import torch

from recipes.sao.knobs import Knobs
from reefcommon.errors import Poison
from tests.recipes.bandit import ALL_LINEAR, START, samples, write_model
from tests.recipes.samples import sample

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("bandit"))


def learner(model_path, **knobs):
    from recipes.sao.learner import SAOLearner

    defaults = {
        "batch_size": 8,
        "critic_warmup_steps": 1,
        "policy_lr": 1e-3,
        "target_modules": ALL_LINEAR,
        "critic_width": 16,
    }
    return SAOLearner(Knobs(**(defaults | knobs)), model_path)


def batch(learner, seed=0, size=8):
    """Sampled by the learner's own policy; every second rollout is called right."""
    played = samples(
        learner.policy.model,
        [11, 14, 19, 23] * (size // 4),
        0,
        seed,
        torch.Generator().manual_seed(seed),
    )
    return [one.model_copy(update={"score": float(i % 2)}) for i, one in enumerate(played)]


def adapter(learner):
    return {
        name: p.detach().clone()
        for name, p in learner.policy.model.named_parameters()
        if p.requires_grad
    }


def test_log_probabilities_equal_the_samplers_in_any_padding(model_path):
    """Prompts and responses of different lengths in one batch, at temperature 0.7, against one
    plain forward each.
    """
    from recipes.policy_gradient.rollouts import rollout

    for prompt_gradient in (True, False):
        one = learner(model_path, prompt_gradient=prompt_gradient)
        for p in one.policy.model.parameters():  # an adapter that does something
            if p.requires_grad:
                p.data += 0.05 * torch.randn(
                    p.shape, generator=torch.Generator().manual_seed(p.numel())
                )
        texts = [
            ((START, 11, 3), (4, 5)),
            ((START,), (1, 2, 3, 9)),
            ((START, 20, 21, 22, 23), (7,)),
        ]
        rollouts = [
            rollout(
                sample(
                    i,
                    tokens=p + r,
                    prompt_length=len(p),
                    loss_mask=(1,) * len(r),
                    logprobs=(-1.0,) * len(r),
                    temperature=0.7,
                )
            )
            for i, (p, r) in enumerate(texts)
        ]
        with torch.no_grad():
            scored = one.policy.score(rollouts)
            for row, (prompt, response) in enumerate(texts):
                logits = one.policy.model(input_ids=torch.tensor([prompt + response])).logits[0]
                expected = torch.log_softmax(logits / 0.7, -1)[
                    range(len(prompt) - 1, len(prompt) + len(response) - 1), list(response)
                ]
                assert torch.allclose(scored.logp_BR[row, : len(response)], expected, atol=1e-5)


def test_micro_batches_give_the_same_step(model_path):
    whole, parts = (
        learner(model_path, critic_warmup_steps=0),
        learner(model_path, critic_warmup_steps=0, micro_batch_tokens=9),
    )
    one = batch(whole)
    whole.step(one)
    parts.step(one)
    for name, tensor in adapter(whole).items():
        assert torch.allclose(tensor, adapter(parts)[name], atol=2e-5), name


def test_warm_up_trains_the_critic_alone(model_path):
    one = learner(model_path, critic_warmup_steps=1)
    before, critic = adapter(one), [p.clone() for p in one.critic.head.parameters()]
    result = one.step(batch(one))
    assert result.step == 1
    assert all(torch.equal(tensor, adapter(one)[name]) for name, tensor in before.items())
    assert any(
        not torch.equal(old, new)
        for old, new in zip(critic, one.critic.head.parameters(), strict=True)
    )
    one.step(batch(one, seed=1))
    assert any(not torch.equal(tensor, adapter(one)[name]) for name, tensor in before.items())


def test_a_saved_state_continues_to_the_bit(model_path, tmp_path):
    first = learner(model_path)
    for seed in range(3):
        first.step(batch(first, seed))
    (tmp_path / "state").mkdir()
    first.save(tmp_path / "state")
    resumed = learner(model_path, seed=99)
    resumed.load(tmp_path / "state")
    for seed in range(3, 5):
        one = batch(first, seed)
        assert first.step(one) == resumed.step(one)
    assert all(
        torch.equal(tensor, adapter(resumed)[name]) for name, tensor in adapter(first).items()
    )
    first.export(tmp_path / "a")
    resumed.export(tmp_path / "b")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["adapter_config.json", "adapter_model.safetensors"]
    assert all(
        (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
        for name in files
    )


def test_a_rejected_actor_goes_back_while_the_critic_goes_on(model_path, tmp_path):
    one = learner(model_path, critic_warmup_steps=0)
    for name, seed in (("head", 0), ("rejected", 1)):
        one.step(batch(one, seed))
        (tmp_path / name).mkdir()
        one.save(tmp_path / name)
        if name == "head":
            accepted = adapter(one)
    critic = [p.clone() for p in one.critic.head.parameters()]
    back = learner(model_path)
    back.load(tmp_path / "rejected", actor_from=tmp_path / "head")
    assert all(torch.equal(tensor, adapter(back)[name]) for name, tensor in accepted.items())
    assert all(
        torch.equal(old, new)
        for old, new in zip(critic, back.critic.head.parameters(), strict=True)
    )
    assert back.steps == 2


def test_adopting_an_adapter_the_base_or_one_that_does_not_fit(model_path, tmp_path):
    one = learner(model_path, critic_warmup_steps=0)
    fresh = adapter(one)
    one.step(batch(one))
    one.export(tmp_path / "published")
    published = adapter(one)
    one.adopt(None)
    assert all(torch.equal(tensor, adapter(one)[name]) for name, tensor in fresh.items())
    one.adopt(tmp_path / "published")
    assert all(torch.equal(tensor, adapter(one)[name]) for name, tensor in published.items())
    with pytest.raises(Poison, match="lora_r"):
        learner(model_path, lora_r=4).adopt(tmp_path / "published")


def test_the_gradient_reaches_sampled_tokens_only(model_path):
    """T4: changing the advantage's tokens outside the mask, or what the environment's log-
    probabilities say, changes nothing.
    """
    steps = []
    for noise in (0.0, -3.0):
        one = learner(model_path, critic_warmup_steps=0)
        tool_turn = sample(
            0,
            tokens=(START, 11, 3, 4, 20, 21, 5),
            prompt_length=2,
            loss_mask=(1, 1, 0, 0, 1),
            logprobs=(-3.3, -3.3, noise, noise, -3.3),
        )
        metrics = one.step([tool_turn]).metrics
        assert metrics["response_tokens"] == 5
        assert metrics["effective_token_rate"] == pytest.approx(3 / 5)
        steps.append(adapter(one))
    assert all(torch.equal(tensor, steps[1][name]) for name, tensor in steps[0].items())


def test_a_step_reports_the_named_metrics_alone(model_path):
    from reefcommon.metrics import STEP_METRICS

    one = learner(model_path, critic_warmup_steps=0)
    own = [name for name in STEP_METRICS if not name.startswith("ttt/")]
    assert sorted(one.step(batch(one)).metrics) == sorted(own)


@pytest.mark.parametrize("recipe", ["sao", "grpo"])
def test_the_greatest_allowed_scores_train(model_path, recipe):
    """A range of 1e6 and rewards at both of its ends: finite metrics, finite weights."""
    import math

    from recipes.grpo.knobs import Knobs as GRPOKnobs
    from recipes.grpo.learner import GRPOLearner

    one = learner(model_path, critic_warmup_steps=0, score_range=(-1e6, 1e6))
    played = [s.model_copy(update={"score": 1e6 if s.score else -1e6}) for s in batch(one)]
    if recipe == "grpo":
        knobs = GRPOKnobs(batch_size=8, group_size=2, score_range=(-1e6, 1e6))
        one = GRPOLearner(knobs, model_path)
    metrics = one.step(played).metrics
    assert all(math.isfinite(value) for value in metrics.values())
    assert all(torch.isfinite(tensor).all() for tensor in adapter(one).values())


def test_a_changed_rate_holds_after_a_restart(model_path, tmp_path):
    """The moments go on; the rates are those of the knobs."""
    first = learner(model_path, critic_warmup_steps=0)
    first.step(batch(first))
    first.save(tmp_path)
    resumed = learner(model_path, policy_lr=1e-5, critic_lr=1e-4, adam_beta2=0.9)
    resumed.load(tmp_path)
    (policy,), (critic,) = (
        part.optimizer.param_groups for part in (resumed.policy, resumed.critic)
    )
    assert (policy["lr"], policy["betas"], critic["lr"]) == (1e-5, (0.9, 0.9), 1e-4)
    before, after = (one.policy.optimizer.state_dict()["state"] for one in (first, resumed))
    assert all(torch.equal(before[i]["exp_avg"], after[i]["exp_avg"]) for i in before)


def test_padding_needs_no_id_of_the_configuration(model_path, tmp_path):
    """Llama's own says -1, which no embedding has."""
    path = shutil.copytree(model_path, tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "pad_token_id": -1}))
    usual, other = learner(model_path), learner(path)
    assert usual.step(batch(usual)).metrics == other.step(batch(usual)).metrics


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("Llama", {"attention_dropout": 0.5}),
        ("Granite", {"logits_scaling": 8.0}),
        ("Gemma2", {"final_logit_softcapping": 1.0}),
        ("Cohere", {"logit_scale": 0.125}),
    ],
)
def test_log_probabilities_are_those_that_the_model_itself_gives(tmp_path, family, changes):
    """Some families scale or cap the logits behind lm_head; none may drop units at random."""
    import transformers

    from recipes.policy_gradient.frozen import base_model
    from recipes.policy_gradient.rollouts import rollout

    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 27}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), START)
    config = getattr(transformers, f"{family}Config")(**shape, **heads, **ends, **changes)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    model.lm_head.weight.data *= 50  # so that a cap is met
    model.save_pretrained(tmp_path)
    one = learner(tmp_path, target_modules=ALL_LINEAR[:-1])
    tokens = (START, 11, 3, 4, 5)
    with torch.no_grad():
        logp = torch.log_softmax(model(input_ids=torch.tensor([tokens])).logits[0], -1)
    expected = logp[[1, 2, 3], [3, 4, 5]]
    given = rollout(sample(0, tokens=tokens))
    frozen = base_model(one.policy)
    for found in (
        one.policy.score([given]).logp_BR[0],
        torch.log_softmax(frozen.logits(frozen.hidden([given]))[0], -1)[[0, 1, 2], [3, 4, 5]],
    ):
        assert torch.allclose(found, expected, atol=1e-5)
