"""Turns and ended sessions of the whole service, on a real broker and a real store."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from pydantic import TypeAdapter

from reefcommon import events, topics
from reefkit.kafka_topics import ensure_topics
from tests.experience.test_broker import (
    conversation,
    free_port,
    process,
    read_all,
    send,
    summary_has,
    until,
    up,
)

pytestmark = [pytest.mark.broker, pytest.mark.store]

SCENARIO = "units"
TALKS = 60
SERVE = f"""reef:
- {{recipe: "tests.experience.test_wants:Turns", scenario: {SCENARIO}}}
- {{recipe: "tests.experience.test_wants:Sessions", scenario: {SCENARIO}}}
"""


async def published(bootstrap: str) -> dict[str, events.Unit]:
    """All units of the scenario by id. Repeats of a unit must be equal."""
    units: dict[str, events.Unit] = {}
    for value in await read_all(bootstrap, topics.SAMPLES.name):
        if orjson.loads(value)["scenario"] == SCENARIO:
            unit: Any = TypeAdapter(events.AnyUnit).validate_json(value)
            assert units.setdefault(unit.event_id, unit) == unit
    return units


async def test_killed_at_any_time_each_exchange_makes_one_turn(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    """Killed twice in the middle; a third of the sessions is closed by its client, the others go
    idle, as their events are old."""
    config = tmp_path / "serve.yaml"
    config.write_text(SERVE)
    more = {"REEF_CONFIG": str(config), "REEF_EXPERIENCE_SWEEP_EVERY_S": "0.5"}
    await ensure_topics(kafka_bootstrap)
    port = free_port()
    talks = [list(conversation(n, SCENARIO)) for n in range(TALKS)]
    for talk in talks[::3]:
        talk[-1] = talk[-1].model_copy(update={"session_end": True})
    log = [event for turn in zip(*talks, strict=True) for event in turn]
    # All before the start: the events are old, and at the end of the log old sessions are idle.
    await send(kafka_bootstrap, *log)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for least in (1, TALKS + 10):
            async with process(kafka_bootstrap, tmp_path, port, **more) as child:
                await until(lambda: up(client))
                await until(summary_has(client, least, SCENARIO))
                child.send_signal(signal.SIGKILL)
        async with process(kafka_bootstrap, tmp_path, port, **more):
            await until(lambda: up(client))

            async def complete() -> bool:
                await asyncio.sleep(0.5)  # the whole topic is read each time
                return len(await published(kafka_bootstrap)) >= 4 * TALKS

            await until(complete, within_s=120)
            page = await client.get(f"/scenarios/{SCENARIO}/units?limit=1000")
    units = await published(kafka_bootstrap)
    turns = [unit for unit in units.values() if isinstance(unit, events.TurnFollowed)]
    sessions = [unit for unit in units.values() if isinstance(unit, events.SessionEnded)]
    assert sorted(turn.record_ids[0] for turn in turns) == sorted(e.event_id for e in log)
    assert {session.record_ids for session in sessions} == {
        tuple(event.event_id for event in talk) for talk in talks
    }
    assert [session.ended for session in sessions].count("closed") == TALKS / 3
    assert {row["unit_id"] for row in page.json()["data"]} == set(units)
    follows = {turn.record_ids[0]: turn for turn in turns}
    for first, second, last in talks:
        assert follows[first.event_id].next_messages == (second.request["messages"][-1],)
        assert follows[second.event_id].ended == "followed"
        assert follows[last.event_id].ended == ("closed" if last.session_end else "idle")
