"""The node's tokens and log-probabilities are transformers' own, whoever shares the batch."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest

from tests.engine.conftest import wait_until

pytestmark = pytest.mark.engine


def recomputed(model, prompt_ids, token_ids, temperature=1.0):
    """Log-probabilities of the answer's ids in one plain forward pass."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([prompt_ids + token_ids])).logits[0, len(prompt_ids) - 1 : -1]
    logp = torch.log_softmax(logits / temperature, dim=-1)
    return [logp[i, token].item() for i, token in enumerate(token_ids)]


def logprobs(choice):
    return [entry["logprob"] for entry in choice["logprobs"]["content"]]


def test_greedy_is_generate(node, reference):
    import torch

    answer = node.chat(temperature=0, max_tokens=40)
    prompt, ids = answer["prompt_token_ids"], answer["choices"][0]["token_ids"]
    whole = reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=40,
        do_sample=False,
    )
    assert whole[0, len(prompt) :].tolist() == ids
    assert logprobs(answer["choices"][0]) == pytest.approx(
        recomputed(reference, prompt, ids), abs=1e-4
    )


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_logprobs_are_of_the_logits_that_were_sampled(node, reference, temperature):
    answer = node.chat(
        temperature=temperature, top_p=0.8, top_k=50, seed=3, max_tokens=30, ignore_eos=True
    )
    choice = answer["choices"][0]
    expected = recomputed(reference, answer["prompt_token_ids"], choice["token_ids"], temperature)
    assert logprobs(choice) == pytest.approx(expected, abs=1e-4)


def test_neither_tokens_nor_logprobs_depend_on_the_batch(node, reference):
    wanted = [
        {
            "seed": i,
            "max_tokens": 10 + 7 * i,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": "x" * (9 * i + 1)}],
        }
        for i in range(6)
    ]
    alone = [node.chat(**fields) for fields in wanted]
    with ThreadPoolExecutor(12) as pool:
        others = [
            pool.submit(node.chat, temperature=1.3, max_tokens=5 + 11 * i, n=2) for i in range(6)
        ]
        together = list(pool.map(lambda fields: node.chat(**fields), wanted))
        [other.result() for other in others]
    for one, other in zip(alone, together, strict=True):
        a, b = one["choices"][0], other["choices"][0]
        assert a["token_ids"] == b["token_ids"]
        assert a["message"] == b["message"]
        assert logprobs(a) == pytest.approx(logprobs(b), abs=1e-4)
        assert logprobs(b) == pytest.approx(
            recomputed(reference, other["prompt_token_ids"], b["token_ids"]), abs=1e-4
        )


def test_a_seed_gives_the_same_choices_and_n_gives_different_ones(node):
    first, second = (node.chat(seed=11, n=3, max_tokens=12) for _ in range(2))
    ids = [choice["token_ids"] for choice in first["choices"]]
    assert ids == [choice["token_ids"] for choice in second["choices"]]
    assert len({tuple(one) for one in ids}) == 3
    assert node.chat(seed=11, max_tokens=12)["choices"][0]["token_ids"] == ids[0]
    # The next seed is another stream: no choice of one request returns in the other.
    following = node.chat(seed=12, n=3, max_tokens=12)["choices"]
    assert not {tuple(one) for one in ids} & {tuple(choice["token_ids"]) for choice in following}
    assert first["usage"]["completion_tokens"] == sum(map(len, ids))


def test_long_prompts_are_read_in_chunks(own_node, reference):
    answer = own_node(prefill_chunk_tokens=16).chat(
        messages=[{"role": "user", "content": "chunk " * 60}],
        temperature=0,
        max_tokens=8,
        ignore_eos=True,
        prompt_logprobs=0,
    )
    prompt, ids = answer["prompt_token_ids"], answer["choices"][0]["token_ids"]
    assert len(prompt) > 300
    assert logprobs(answer["choices"][0]) == pytest.approx(
        recomputed(reference, prompt, ids), abs=1e-4
    )
    scores = [
        entry[str(token)]["logprob"]
        for entry, token in zip(answer["prompt_logprobs"][1:], prompt[1:], strict=True)
    ]
    assert scores == pytest.approx(recomputed(reference, prompt[:1], prompt[1:]), abs=1e-4)


def test_penalties_change_what_follows(node):
    plain = node.chat(temperature=0, max_tokens=40, ignore_eos=True)["choices"][0]["token_ids"]
    assert len(set(plain)) < 40, "the tiny model repeats itself"
    for penalty in (
        {"presence_penalty": 2.0},
        {"frequency_penalty": 2.0},
        {"repetition_penalty": 50.0},
    ):
        ids = node.chat(temperature=0, max_tokens=40, ignore_eos=True, **penalty)["choices"][0][
            "token_ids"
        ]
        assert len(set(ids)) == 40


def test_top_k_one_is_greedy(node):
    greedy = node.chat(temperature=0, max_tokens=10)["choices"][0]["token_ids"]
    assert (
        node.chat(temperature=1.0, top_k=1, seed=5, max_tokens=10)["choices"][0]["token_ids"]
        == greedy
    )
    assert (
        node.chat(temperature=1.0, top_p=1e-6, seed=5, max_tokens=10)["choices"][0]["token_ids"]
        == greedy
    )


def test_draws_follow_the_distribution():
    """20,000 draws against the probabilities, within five standard errors."""
    import torch

    from services.engine.domain.draws import uniform
    from services.engine.domain.sampling import SamplingParams
    from services.engine.sampler import sample

    logits = torch.tensor([[2.0, 1.0, 0.0, -torch.inf, 0.5]])
    params = SamplingParams(max_tokens=1)
    plain = partial(SimpleNamespace, params=params, token_ids=(), banned=frozenset())
    rows = [plain(draw=uniform(0, stream, 0)) for stream in range(20_000)]
    tokens = sample(logits.repeat(20_000, 1), rows)
    shares = (
        torch.bincount(torch.tensor([token.token_id for token in tokens]), minlength=5) / 20_000
    )
    expected = torch.softmax(logits[0], 0)
    assert shares[3] == 0
    assert (shares - expected).abs().max() < 5 * (0.25 / 20_000) ** 0.5


def test_a_draw_in_two_levels_is_that_of_one_running_sum():
    """Against the plain inversion, on distributions with many zeros, at 0, just below 1 and in between."""
    import torch

    from services.engine.sampler import _invert_cdf

    generator = torch.Generator().manual_seed(2)
    probabilities = torch.rand(64, 1000, generator=generator)
    probabilities[torch.rand(64, 1000, generator=generator) < 0.7] = 0.0
    probabilities[:32, :300] = 0.0
    probabilities[16:48, 700:] = 0.0
    uniform = torch.rand(64, 1, generator=generator, dtype=torch.float64)
    uniform[::4], uniform[1::4] = 0.0, 1 - 2**-53
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    plain = torch.searchsorted(
        cumulative, uniform * (1 - 1e-12) * cumulative[:, -1:], right=True
    ).squeeze(1)
    drawn = _invert_cdf(probabilities, uniform)
    assert (drawn == plain).sum() >= 63, "rounding may move one by a token"
    assert (probabilities.gather(1, drawn.unsqueeze(1)) > 0).all()


def test_prompts_that_wait_are_read_together(own_node, reference):
    """Of several lengths: each answer is what it is alone."""
    node = own_node()
    wanted = [
        {
            "seed": i,
            "max_tokens": 6,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": "y" * (5 * i)}],
        }
        for i in range(7)
    ]
    alone = [node.chat(**fields) for fields in wanted]
    runner = node.engine.loop.runner
    forwards, whole = [], runner.prefill_whole
    runner.prefill_whole = lambda prompts, adapters, rows: (
        forwards.append(len(prompts)) or whole(prompts, adapters, rows)
    )
    with node.client() as client, ThreadPoolExecutor(7) as pool:
        client.post("/pause?mode=keep")
        held = [pool.submit(node.chat, **fields) for fields in wanted]
        wait_until(lambda: node.engine.loop.waiting == 7)
        client.post("/resume")
        together = [one.result() for one in held]
    assert max(forwards) > 1
    for one, other in zip(alone, together, strict=True):
        a, b = one["choices"][0], other["choices"][0]
        assert a["token_ids"] == b["token_ids"]
        assert logprobs(b) == pytest.approx(
            recomputed(reference, other["prompt_token_ids"], b["token_ids"]), abs=1e-4
        )


def test_a_prompt_that_breaks_the_model_breaks_none_of_those_read_with_it(own_node, monkeypatch):
    node = own_node()
    loop = node.engine.loop

    def broken(*_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(loop.runner, "prefill_whole", broken)
    with node.client() as client, ThreadPoolExecutor(3) as pool:
        client.post("/pause?mode=keep")
        held = [pool.submit(node.chat, max_tokens=4, ignore_eos=True) for _ in range(3)]
        wait_until(lambda: loop.waiting == 3)
        client.post("/resume")
        assert [len(one.result()["choices"][0]["token_ids"]) for one in held] == [4, 4, 4]
