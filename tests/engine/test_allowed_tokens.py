"""Constrained decoding: a mask over the vocabulary, on the record, and repeated by the learner."""

import pytest

from recipes.policy_gradient.knobs import PolicyGradientKnobs
from recipes.policy_gradient.rollouts import rollout
from reefcommon.events import Sampling
from services.gateway.domain.sampling import effective, requested
from tests.engine.test_parity import logprobs
from tests.recipes.samples import sample

pytestmark = pytest.mark.engine
DIGITS = [17, 18, 19, 20, 21, 22]


def test_only_allowed_tokens_are_sampled_and_eos_is_none_of_them(node):
    answer = node.chat(n=4, max_tokens=30, seed=5, allowed_token_ids=DIGITS[::-1] + DIGITS)
    for choice in answer["choices"]:
        assert set(choice["token_ids"]) <= set(DIGITS)
        assert (len(choice["token_ids"]), choice["finish_reason"]) == (30, "length")
    assert {i for choice in answer["choices"] for i in choice["token_ids"]} == set(DIGITS)
    assert answer["sampling_params"]["allowed_token_ids"] == DIGITS
    only = node.chat(max_tokens=5, allowed_token_ids=[40], temperature=0)["choices"][0]
    assert only["token_ids"] == [40] * 5
    assert logprobs(only) == pytest.approx([0.0] * 5, abs=1e-6)


def test_a_mask_ends_with_eos_where_it_is_allowed(node):
    choice = node.chat(max_tokens=9, allowed_token_ids=[258])["choices"][0]
    assert (choice["token_ids"], choice["finish_reason"]) == ([258], "stop")


def test_masked_tokens_are_no_alternatives(node):
    choice = node.chat(max_tokens=2, top_logprobs=20, allowed_token_ids=DIGITS)["choices"][0]
    for entry in choice["logprobs"]["content"]:
        assert len(entry["top_logprobs"]) == len(DIGITS)
        assert all(other["logprob"] <= 0 for other in entry["top_logprobs"])


def test_a_row_with_a_mask_does_not_touch_the_others(node):
    plain = node.chat(max_tokens=12, seed=4, ignore_eos=True)["choices"][0]["token_ids"]
    with node.client() as client:
        body = {"prompt": "a", "max_tokens": 40, "allowed_token_ids": DIGITS, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as masked:
            beside = node.chat(max_tokens=12, seed=4, ignore_eos=True)["choices"][0]["token_ids"]
            assert masked.status_code == 200
            masked.read()
    assert beside == plain


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_learner_has_the_log_probabilities_of_the_record(node, tiny_path, temperature):
    import torch

    from recipes.policy_gradient.policy import LoraPolicy

    asked = {"allowed_token_ids": DIGITS, "temperature": temperature}
    units = []
    for number in range(3):
        answer = node.chat(max_tokens=6 + number, seed=number, **asked)
        stated = effective(answer["sampling_params"], requested(asked), {})
        choice = answer["choices"][0]
        units.append(
            sample(
                number,
                tokens=(*answer["prompt_token_ids"], *choice["token_ids"]),
                prompt_length=len(answer["prompt_token_ids"]),
                loss_mask=(1,) * len(choice["token_ids"]),
                logprobs=tuple(min(x, 0.0) for x in logprobs(choice)),
                temperature=temperature,
                sampling=(Sampling.model_validate(stated),),
            )
        )
    rollouts = [rollout(unit, corrects=("allowed_token_ids",)) for unit in units]
    assert all(one.allowed == tuple(DIGITS) for one in rollouts)
    with torch.no_grad():
        scored = LoraPolicy(PolicyGradientKnobs(), tiny_path).score(rollouts)
    gaps = (scored.logp_BR - scored.behaviour_BR).abs() * scored.mask_BR
    assert float(gaps.max()) < 1e-4
    ceiling = torch.log(torch.tensor(float(len(DIGITS)))) + 1e-5
    assert bool((scored.entropy_BR * scored.mask_BR <= ceiling).all())
    assert bool(torch.isfinite(scored.entropy_BR).all())
