"""Seeds and choices give independent streams; the same seed repeats."""

import itertools

import numpy as np
import pytest

from services.engine.domain.draws import uniform
from services.engine.domain.sampling import SamplingParams

COUNT = 4000


def stream(seed, choice):
    return np.array([uniform(seed, choice, k) for k in range(COUNT)])


def correlation(a, b):
    return abs(float(np.corrcoef(a, b)[0, 1]))


def test_a_stream_is_uniform_and_repeats():
    values = stream(7, 0)
    assert (values == stream(7, 0)).all()
    assert ((values >= 0) & (values < 1)).all()
    shares, _ = np.histogram(values, bins=20, range=(0, 1))
    expected = COUNT / 20
    # Chi-square with 19 degrees of freedom: 43.8 is exceeded with probability 0.001.
    assert float(((shares - expected) ** 2 / expected).sum()) < 43.8
    assert correlation(values[:-1], values[1:]) < 5 / COUNT**0.5


def test_streams_of_neighbouring_seeds_and_choices_are_independent():
    """Every pair, in step and shifted by up to two tokens, within five standard errors of zero."""
    keys = [(seed, choice) for seed in (1_000_003, 1_000_004, 1_000_005) for choice in range(4)]
    streams = {key: stream(*key) for key in keys}
    for (one, a), (other, b) in itertools.combinations(streams.items(), 2):
        for shift in (0, 1, 2):
            value = correlation(a[: COUNT - shift], b[shift:])
            assert value < 5 / COUNT**0.5, (one, other, shift)
    firsts = np.array([uniform(seed, 0, 0) for seed in range(COUNT)])
    assert correlation(firsts[:-1], firsts[1:]) < 5 / COUNT**0.5
    assert len(set(firsts)) == COUNT


@pytest.mark.engine
def test_samples_of_a_measurement_are_independent(node):
    """16 seeds in a row, 3 choices each: 48 different answers, as from 48 fresh seeds."""
    answers = [
        tuple(choice["token_ids"])
        for seed in range(1_000_003, 1_000_019)
        for choice in node.chat(seed=seed, n=3, max_tokens=12, ignore_eos=True)["choices"]
    ]
    assert len(set(answers)) == 48


@pytest.mark.engine
def test_prompts_of_one_request_do_not_share_a_stream(node):
    body = {"prompt": ["same", "same"], "n": 2, "seed": 5, "max_tokens": 12, "ignore_eos": True}
    with node.client() as client:
        answers = [
            client.post("/v1/completions", json=body | {"return_token_ids": True}).json()["choices"]
            for _ in range(2)
        ]
    ids = [[tuple(choice["token_ids"]) for choice in choices] for choices in answers]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 4


def test_very_small_temperatures_are_greedy():
    for temperature in (1e-320, 1e-30, 9e-6, 0.0):
        params = SamplingParams(max_tokens=1, temperature=temperature)
        assert (params.greedy, params.temperature) == (True, 0.0)
    assert not SamplingParams(max_tokens=1, temperature=2e-5).greedy
