"""Waiting reports in memory: bounded, and found by each record that they wait for."""

from services.experience.domain.parking import Parked, Parking
from tests.experience.factory import T0, report


def parked(number: int, *references: str) -> Parked:
    return Parked(report(*references, report_id=f"rep-{number}"), T0, 0, number, None)


def found(parking: Parking, *records: str) -> list[str]:
    return [one.report.event_id for one in parking.waiting_for(records)]


def test_a_report_is_found_by_each_of_its_records_until_it_is_let_go() -> None:
    parking = Parking(limit=9)
    parking.add(parked(2, "a", "b"))
    parking.add(parked(1, "b"))
    assert (found(parking, "a"), found(parking, "b", "a"), found(parking, "c")) == (
        ["rep-2"],
        ["rep-1", "rep-2"],
        [],
    )
    parking.discard("rep-2")
    parking.discard("rep-2")
    assert (found(parking, "a", "b"), len(parking), "rep-2" in parking) == (["rep-1"], 1, False)
    parking.discard("rep-1")
    assert parking._by_reference == {}, "nothing is kept of what has gone"


def test_the_one_that_came_first_is_let_go_where_there_are_too_many() -> None:
    """One that comes again comes last."""
    parking = Parking(limit=2)
    for number in (1, 2, 1, 3):
        parking.add(parked(number, "a"))
    assert (found(parking, "a"), len(parking)) == (["rep-1", "rep-3"], 2)
