"""The schedule: from the seed alone, every part equally often."""

from collections import Counter

from tests.chaos.plan import MAX_BURST, PARTS, draw


def test_a_seed_gives_the_same_schedule_again_and_another_one_another():
    assert draw(7, 30) == draw(7, 30)
    assert draw(7, 30) != draw(8, 30)


def test_five_long_runs_are_200_kills_and_20_outages_and_each_part_ten_times():
    faults = [fault for seed in range(5) for fault in draw(seed, 50)]
    kills = Counter(
        part for fault in faults if fault.kind in ("kill", "hang") for part in fault.parts
    )
    assert sum(kills.values()) >= 200
    assert sum(fault.kind == "outage" for fault in faults) >= 20
    assert set(kills) >= set(PARTS)
    assert min(kills.values()) >= 10
    assert all(fault.parts == ("serve",) for fault in faults if "serve" in fault.parts)
    assert not {
        part for fault in faults if fault.kind in ("hang", "pause") for part in fault.parts
    } & {"step", "serve"}
    assert {fault.kind for fault in faults} == {
        "kill",
        "pause",
        "hang",
        "outage",
        "upstream",
        "disk",
    }


def test_some_are_killed_together_but_never_one_part_twice_in_a_burst():
    bursts = [fault.parts for seed in range(20) for fault in draw(seed, 50) if fault.kind == "kill"]
    assert {len(burst) for burst in bursts} == set(range(1, MAX_BURST + 1))
    assert all(len(set(burst)) == len(burst) for burst in bursts)


def test_a_short_run_still_kills_and_takes_something_away():
    faults = draw(1, 4)
    assert sum(fault.kills for fault in faults) == 3
    assert sum(fault.kind == "outage" for fault in faults) == 1
    assert [fault.number for fault in faults] == list(range(1, len(faults) + 1))
