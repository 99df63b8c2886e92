"""Exchanges and reports of many megabytes on a real broker and a real store: they stop nothing."""

from pathlib import Path

import orjson
import pytest

from reefcommon import topics
from reefcommon.events import SampleReady
from reefkit.bodies import FilesystemBodies, whole_value
from tests.experience.factory import inference, report, user
from tests.experience.test_broker import ready, running, send, summary, until
from tests.replay.reading import everything

pytestmark = [pytest.mark.broker, pytest.mark.store]


async def claimed(root: Path, text: str, **fields: object) -> object:
    """An exchange as the gateway records it if its bodies are too large for the log."""
    whole = inference((user(text),), **fields)
    body = orjson.dumps({"request": whole.request, "response": whole.response})
    ref = await FilesystemBodies(root / "bodies").keep(body)
    return whole.model_copy(update={"request": None, "response": None, "body_ref": ref})


async def test_a_chat_of_9_mb_that_failed_stops_no_later_record(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    """Nor one with as large a report on it; later ones are joined, also after a restart."""
    bodies = FilesystemBodies(tmp_path / "bodies")
    failed = await claimed(
        tmp_path, "x" * 9_000_000, scenario="large", outcome="failed", status=400,
        error="too long", completions=(), prompt_token_ids=(),
    )  # fmt: skip
    long = await claimed(tmp_path, "long", scenario="large", prompt=range(200_000), sampled=(1, 2))
    small = inference((user("small"),), scenario="large")
    async with running(kafka_bootstrap, tmp_path) as client:
        await until(lambda: ready(client))
        await send(
            kafka_bootstrap, failed, long, small,
            report(failed.event_id, scenario="large", score=0.0),
            report(long.event_id, scenario="large", feedback={"why": "y" * 800_000}),
            report(small.event_id, scenario="large"),
        )  # fmt: skip
        joined = {"failed": 1, "trainable": 2}
        await until(summary(client, "large", reports={"joined": 3}, samples=joined))
        assert await ready(client)
        assert (await client.get(f"/records/{failed.event_id}")).json()["record"]["request"]
    later = inference((user("later"),), scenario="large")
    async with running(kafka_bootstrap, tmp_path) as client:
        await send(kafka_bootstrap, later, report(later.event_id, scenario="large"))
        await until(summary(client, "large", records={"ok": 3, "failed": 1}))
        await until(summary(client, "large", samples={"failed": 1, "trainable": 3}))
    samples = {}
    for record in await everything(kafka_bootstrap, topics.SAMPLES.name):
        # The broker is shared: units of other tests are on the topic too, and their bodies are gone.
        if record.key == b"large":
            value = await whole_value(record.value, record.headers, bodies)
            sample = SampleReady.model_validate_json(value)
            samples[sample.record_ids] = sample
    assert len(samples[failed.event_id,].messages[0]["content"]) == 9_000_000
    assert samples[long.event_id,].tokens == (*range(200_000), 1, 2)
    assert len(samples[long.event_id,].feedback["why"]) == 800_000
