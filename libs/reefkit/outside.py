"""The outside systems that a service shares with others, opened from its settings."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from redis.asyncio import Redis

from reefcommon.artifacts import ArtifactStore
from reefcommon.events import utc_now
from reefcommon.serving import WeightNode
from reefcommon.settings import SystemSettings
from reefcommon.topics import Topic
from reefkit.artifacts.selection import open_artifact_store
from reefkit.bodies import FilesystemBodies
from reefkit.bus import Bus, EventPublisher, KafkaPublisher, kafka_broker
from reefkit.kafka_topic_log import KafkaTopicLog
from reefkit.redis_heads import RedisReleaseHeads, connect
from reefkit.redis_rotation import RedisRotation
from reefkit.serving_http import HttpServingNode


@dataclass(frozen=True)
class Outside:
    """All ports that several services need. Tests pass their own."""

    system: SystemSettings
    redis: Redis
    artifacts: ArtifactStore
    nodes: tuple[WeightNode, ...]
    events: EventPublisher
    now: Callable[[], datetime] = utc_now

    @classmethod
    def connect(cls, system: SystemSettings, service: str) -> tuple["Outside", Bus]:
        """Build the clients and the broker of a deployment. Connects to none yet."""
        broker = kafka_broker(system, service)
        nodes = tuple(HttpServingNode(url, api_key=system.engine_api_key) for url in system.engines)
        redis, artifacts = connect(system.redis_url), open_artifact_store(system)
        return cls(system, redis, artifacts, nodes, KafkaPublisher(broker)), broker

    @cached_property
    def heads(self) -> RedisReleaseHeads:
        return RedisReleaseHeads(self.redis)

    @cached_property
    def rotation(self) -> RedisRotation:
        return RedisRotation(self.redis)

    def log_of(self, topic: Topic) -> KafkaTopicLog:
        """Return a topic to read from its beginning, without a consumer group."""
        bodies = FilesystemBodies(self.system.state_dir / "bodies")
        return KafkaTopicLog(topic, self.system.kafka_bootstrap, bodies)

    async def close(self) -> None:
        for node in self.nodes:
            if isinstance(node, HttpServingNode):
                await node.close()
        await self.redis.aclose()
