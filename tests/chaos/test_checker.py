"""The checker: a sound run holds, repeats and all."""

from dataclasses import replace

from tests.chaos.checker import INVARIANTS, all_held, check
from tests.chaos.sound import sound


def test_a_sound_run_holds():
    stated = check(sound())
    assert {one.name: one.broken for one in stated if not one.held} == {}
    assert len(stated) == len(INVARIANTS)
    assert all(one.looked_at for one in stated), "nothing holds for want of anything to look at"


def test_repeats_without_another_content_are_once_by_effect():
    facts = sound()
    again = tuple(replace(place, offset=place.offset + 50) for place in facts.log)
    assert all_held(check(replace(facts, log=(*facts.log, *again))))
    assert all_held(check(replace(facts, log=(*facts.log, again[0])))), (
        "the first place of a turn is the one that counts"
    )
