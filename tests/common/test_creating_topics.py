"""Topics are created as the registry has them, or somebody hears that they were not."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from aiokafka.admin import NewTopic
from aiokafka.errors import (
    BrokerResponseError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
)

from reefcommon import topics
from reefcommon.errors import Unavailable
from reefkit import kafka_topics


class Admin:
    """The admin client of a broker that has the topics `there`, and answers the creation of another with this code."""

    code = 0
    there: tuple[str, ...] = ()
    asked: list[NewTopic]

    def __init__(self, **_: object) -> None:
        pass

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def list_topics(self) -> list[str]:
        return list(self.there)

    async def create_topics(self, new: list[NewTopic]) -> SimpleNamespace:
        type(self).asked = new
        return SimpleNamespace(topic_errors=[(topic.name, self.code, "") for topic in new])


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> type[Admin]:
    made = type("Ours", (Admin,), {})
    monkeypatch.setattr(kafka_topics, "AIOKafkaAdminClient", made)
    return made


async def test_a_topic_and_its_dead_letters_are_created_where_they_are_missing(
    admin: type[Admin],
) -> None:
    topic = topics.SAMPLES
    admin.there = (topics.FEEDBACK.name,)
    assert await kafka_topics.ensure_topics("kafka:9092", (topics.FEEDBACK, topic)) == [
        topics.FEEDBACK.dead,
        topic.name,
        topic.dead,
    ]
    assert [
        (new.name, new.num_partitions, new.topic_configs["retention.ms"]) for new in admin.asked[1:]
    ] == [
        (topic.name, topic.partitions, str(topic.retention_ms)),
        (topic.dead, 1, "-1"),
    ]


@pytest.mark.parametrize(
    ("error", "refuses"), [(TopicAlreadyExistsError, False), (TopicAuthorizationFailedError, True)]
)
async def test_a_broker_that_refuses_is_heard(
    admin: type[Admin], error: type[BrokerResponseError], refuses: bool
) -> None:
    """Its refusal is in an answer that the client takes for a success. That somebody else was faster is none."""
    admin.code = error.errno
    with pytest.raises(Unavailable, match=error.__name__) if refuses else nullcontext():
        assert await kafka_topics.ensure_topics("kafka:9092", (topics.SAMPLES,)) == []
