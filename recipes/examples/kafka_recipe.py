"""A recipe of your own as an ordinary Kafka consumer: what users say about low-scored answers becomes a rule of the harness.

    reef.samples.v1 --(score < 0.5 and words)--> a harness tree with one rule --> reef.candidates.v1 --> evaluator --> publisher

Run it beside a Reef that is up (it reads the same REEF_* settings as the services):  python -m recipes.examples.kafka_recipe
"""

import asyncio
import tempfile
from pathlib import Path

from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker

from reefcommon.artifacts import describe
from reefcommon.artifacts_open import open_artifact_store
from reefcommon.events import CandidateProposed, SampleReady, utc_now
from reefcommon.harness import Entry
from reefcommon.harness_files import write_tree
from reefcommon.ids import digest
from reefcommon.settings import SystemSettings

settings = SystemSettings()
store = open_artifact_store(settings)
broker = KafkaBroker(settings.kafka_bootstrap, acks="all")


@broker.subscriber("reef.samples.v1", group_id="my-recipe", auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR)
async def on_sample(sample: SampleReady) -> None:
    """One rule for one complaint. The candidate's id comes from its inputs, so that reading the sample again proposes nothing new."""
    if sample.score is None or sample.score >= 0.5 or not isinstance(sample.feedback, str) or sample.release_id is None:
        return
    with tempfile.TemporaryDirectory() as directory:
        write_tree((Entry("users-say", "rules", {"text": f"Users ask of every answer: {sample.feedback}"}),), Path(directory))
        manifest = describe(Path(directory), "harness")
        await asyncio.to_thread(store.put, Path(directory), manifest, sample.scenario)
    candidate = CandidateProposed(
        event_id="cand-" + digest("my-recipe", sample.event_id),
        at=utc_now(), scenario=sample.scenario, kind="harness", content_id=manifest.content_id, base_release_id=sample.release_id,
        reason="a user's words",
    )  # fmt: skip
    await broker.publish(candidate.model_dump_json(exclude_none=True).encode(), "reef.candidates.v1", key=sample.scenario.encode())


if __name__ == "__main__":
    asyncio.run(FastStream(broker).run())
