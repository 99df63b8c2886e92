"""A sweep asks the store for waiting reports if one waits here, else every sixth time."""

import pytest

from tests.experience.factory import report
from tests.experience.test_turns import Rig


async def test_a_sweep_at_rest_seldom_asks_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, asked = Rig(), list[str]()
    parked = rig.store.store.parked

    async def counted(*, after: str, limit: int) -> object:
        asked.append(after)
        return await parked(after=after, limit=limit)

    monkeypatch.setattr(rig.store.store, "parked", counted)
    for _ in range(7):
        await rig.sweep()
    assert len(asked) == 2
    await rig.take(report("rec-unknown"))
    for _ in range(3):
        asked.clear()
        await rig.sweep()
        assert asked
