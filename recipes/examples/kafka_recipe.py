"""A recipe of your own as an ordinary Kafka consumer.

It makes a rule of the harness from the words of users about low-scored answers. Run it beside Reef:

    reef serve -c recipes/feedback_rules/examples/greeting/serve.yaml
    python -m recipes.examples.kafka_recipe

Then report a receipt with {"score": 0, "feedback": "Greet the user with Hello first."}. The REEF_*
settings are those of the services.
"""

# reef.samples.v1 --(score < 0.5 and words)--> a harness tree with one rule --> reef.candidates.v1

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from aiokafka.errors import KafkaConnectionError
from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker, KafkaMessage
from pydantic_core import from_json

from reefcommon.artifacts import describe
from reefcommon.events import AnyUnit, CandidateProposed, SampleReady, utc_now
from reefcommon.harness.files import write_tree
from reefcommon.harness.tree import Entry
from reefcommon.ids import digest
from reefcommon.settings import SystemSettings
from reefkit.artifacts.selection import open_artifact_store
from reefkit.bodies import FilesystemBodies, whole_value


def running_broker(settings: SystemSettings) -> str:
    """Return host:port of the broker: the settings', else the running stack's, else empty."""
    if "kafka_bootstrap" in settings.model_fields_set:
        return settings.kafka_bootstrap
    try:
        stack = json.loads((settings.state_dir / "stack.json").read_text())
    except (OSError, ValueError):
        return ""
    return "" if stack["phase"] == "ended" else str(stack["urls"].get("kafka", ""))


settings = SystemSettings()
address = running_broker(settings)
store = open_artifact_store(settings)
broker = KafkaBroker(address or settings.kafka_bootstrap, acks="all")


async def whole(message: KafkaMessage) -> dict[str, Any]:
    """Return the event of a message; a large one is read from the body store."""
    raw = message.raw_message
    headers = raw[0].headers if isinstance(raw, tuple) else raw.headers
    bodies = FilesystemBodies(settings.state_dir / "bodies")
    value = await whole_value(message.body, headers, bodies)
    return dict(from_json(value))


@broker.subscriber(
    "reef.samples.v1",
    group_id="my-recipe",
    auto_offset_reset="earliest",
    ack_policy=AckPolicy.NACK_ON_ERROR,
    decoder=whole,
)
async def on_sample(sample: AnyUnit) -> None:
    if not isinstance(sample, SampleReady):
        return  # turns and sessions, which other recipes ask for, are on the topic too
    judged_bad = sample.score is not None and sample.score < 0.5
    if not judged_bad or not isinstance(sample.feedback, str) or sample.release_id is None:
        return
    rule = {"text": f"Users ask of every answer: {sample.feedback}"}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        write_tree((Entry("users-say", "rules", rule),), directory)
        manifest = describe(directory, "harness")
        await asyncio.to_thread(store.put, directory, manifest, sample.scenario)
    # The id comes from the inputs: the same sample, read again, is the same candidate.
    candidate = CandidateProposed(
        event_id="cand-" + digest("my-recipe", sample.event_id),
        at=utc_now(),
        scenario=sample.scenario,
        kind="harness",
        content_id=manifest.content_id,
        base_release_id=sample.release_id,
        reason="a user's words",
    )  # fmt: skip
    await broker.publish(
        candidate.model_dump_json(exclude_none=True).encode(),
        "reef.candidates.v1",
        key=sample.scenario.encode(),
    )
    sys.stdout.write(
        f"proposed {candidate.event_id} on {sample.release_id}: {sample.feedback!r}\n"
        f"  its verdict: reef releases {sample.scenario} --evidence {candidate.event_id}\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    if not address:
        sys.exit(
            f"no Reef runs on {settings.state_dir}: start one, or name its REEF_STATE_DIR, or a "
            "broker in REEF_KAFKA_BOOTSTRAP"
        )
    try:
        asyncio.run(FastStream(broker).run())
    except KafkaConnectionError:
        sys.exit(
            f"no broker answers at {address}: is that Reef up? `reef status` shows the address of "
            "its broker"
        )
