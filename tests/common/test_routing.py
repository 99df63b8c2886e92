"""Routing policies: shares within binomial bounds, sessions that stay, rules first."""

import subprocess
import sys
from collections import Counter

import pytest
from pydantic import ValidationError

from reefcommon.errors import Poison
from reefcommon.routing import HEAD, RoutingPolicy, read_policy, write_policy

N = 20_000
NINETY_TEN = RoutingPolicy(shares={"r5": 0.1})


def choices(policy, scenario="default", number=N):
    return [policy.choose(scenario, f"session-{i}", {}) for i in range(number)]


@pytest.mark.parametrize("scenario", ["default", "other", "third"])
def test_20_000_sessions_are_shared_within_the_binomial_bounds(scenario):
    share, counted = 0.1, Counter(choices(NINETY_TEN, scenario))
    bound = 3.3 * (N * share * (1 - share)) ** 0.5  # a thousand in a million runs are outside
    assert abs(counted["r5"] - N * share) < bound
    assert counted[HEAD] == N - counted["r5"]


def test_several_shares_and_a_rest():
    policy = RoutingPolicy(shares={"a": 0.5, "b": 0.25, "c": 0.0})
    counted = Counter(choices(policy))
    for name, share in {"a": 0.5, "b": 0.25, HEAD: 0.25}.items():
        assert abs(counted[name] - N * share) < 3.3 * (N * share * (1 - share)) ** 0.5
    assert counted["c"] == 0


def test_another_process_sends_the_same_sessions_to_the_same_releases():
    script = (
        "from reefcommon.routing import RoutingPolicy as P; import hashlib;"
        "p = P(shares={'r5': 0.1});"
        "text = ''.join(p.choose('default', f'session-{i}', {}) for i in range(2000));"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(found) == 1


def test_a_share_that_grows_takes_sessions_and_gives_none_away():
    before, after = choices(NINETY_TEN), choices(RoutingPolicy(shares={"r5": 0.2}))
    moved = {(old, new) for old, new in zip(before, after, strict=True) if old != new}
    assert moved == {(HEAD, "r5")}


def test_a_third_release_takes_from_both_and_moves_none_between_them():
    before = choices(NINETY_TEN)
    after = choices(RoutingPolicy(shares={"r5": 0.05, "r6": 0.2}))
    moved = {(old, new) for old, new in zip(before, after, strict=True) if old != new}
    assert moved <= {(HEAD, "r6"), ("r5", "r6"), ("r5", HEAD)}


def test_a_rule_by_tag_wins_over_shares_and_the_first_that_fits_over_others():
    rules = [
        {"tag": "client", "value": "beta*", "release": "r5"},
        {"tag": "client", "value": "*", "release": HEAD},
        {"tag": "tier", "value": "free", "release": "r6"},
    ]
    policy = RoutingPolicy(shares={"r7": 1.0}, rules=rules)
    for i in range(50):
        session = f"s-{i}"
        assert policy.choose("d", session, {"client": "beta-2", "tier": "free"}) == "r5"
        assert policy.choose("d", session, {"client": "old", "tier": "free"}) == HEAD
        assert policy.choose("d", session, {"tier": "free"}) == "r6"
        assert policy.choose("d", session, {"tier": "paid"}) == "r7"
    assert policy.releases == ("r7", "r5", "r6")


@pytest.mark.parametrize(
    "wrong",
    [
        {"shares": {"a": 0.7, "b": 0.4}},
        {"shares": {"a": -0.1}},
        {"shares": {"a": float("nan")}},
        {"shares": {HEAD: 0.5}},
        {"shares": {"a b": 0.5}},
        {"shares": {f"r{i}": 0.01 for i in range(9)}},
        {"rules": [{"tag": "t", "value": "v"}]},
        {"else": {}},
    ],
)
def test_a_policy_that_cannot_hold_is_refused(wrong):
    with pytest.raises(ValidationError):
        RoutingPolicy.model_validate(wrong)


def test_a_policy_is_read_as_it_was_written_and_a_damaged_file_is_named(tmp_path):
    policy = RoutingPolicy(shares={"r5": 0.1}, rules=[{"tag": "a", "value": "b", "release": "r5"}])
    write_policy(policy, tmp_path)
    assert read_policy(tmp_path) == policy
    (tmp_path / "routing.json").write_text('{"shares": {"r5": 3}}')
    with pytest.raises(Poison, match=r"shares\.r5"):
        read_policy(tmp_path)
    (tmp_path / "routing.json").unlink()
    with pytest.raises(Poison, match=r"routing\.json"):
        read_policy(tmp_path)
