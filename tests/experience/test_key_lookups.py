"""Lookups of receipts share queries; each sees what was stored before it was asked."""

import asyncio

import pytest

from reefcommon.errors import Unavailable
from services.experience import key_lookups
from services.experience.key_lookups import KeyLookups


class Store:
    """`away`: the next query fails."""

    def __init__(self):
        self.rows, self.queries, self.away, self.open = {}, [], False, asyncio.Event()
        self.open.set()

    async def read(self, keys):
        self.queries.append(list(keys))
        found = {key: {"of": self.rows[key]} for key in keys if key in self.rows}
        await self.open.wait()
        if self.away:
            self.away = False
            raise Unavailable("away")
        return found


async def test_keys_that_come_during_a_query_share_the_next():
    store = Store()
    lookups, store.rows = KeyLookups(store.read), {"b": 1, "c": 2}
    store.open.clear()
    first = asyncio.create_task(lookups.find("a"))
    await asyncio.sleep(0)
    rest = [asyncio.create_task(lookups.find(key)) for key in "abcb"]
    await asyncio.sleep(0.01)
    store.rows["a"] = 0  # after the query for the first, before that for the others
    store.open.set()
    assert await first is None
    assert await asyncio.gather(*rest) == [{"of": 0}, {"of": 1}, {"of": 2}, {"of": 1}]
    assert store.queries == [["a"], ["a", "b", "c"]]


async def test_a_failure_is_that_of_its_query_and_one_who_leaves_harms_nobody(monkeypatch):
    monkeypatch.setattr(key_lookups, "MOST_TOGETHER", 2)
    store = Store()
    lookups, store.rows, store.away = KeyLookups(store.read), {"a": 1, "c": 3}, True
    left = asyncio.create_task(lookups.find("a"))
    others = [asyncio.create_task(lookups.find(key)) for key in "abc"]
    await asyncio.sleep(0)
    left.cancel()
    failed, also, found = await asyncio.gather(*others, return_exceptions=True)
    assert isinstance(failed, Unavailable)
    assert isinstance(also, Unavailable)
    assert found == {"of": 3}
    with pytest.raises(asyncio.CancelledError):
        await left
    assert await lookups.find("a") == {"of": 1}
