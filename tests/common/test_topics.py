"""The topic registry says who reads what; the services' own routing tables are the proof."""

from dataclasses import fields
from types import ModuleType
from typing import Any

import pytest
from faststream.kafka import KafkaBroker
from pydantic import SecretStr

from reefcommon import topics
from reefkit.jobs import host
from services.evaluator import app as evaluator
from services.experience import app as experience
from services.experience.settings import Settings
from services.experience.wants import Wants
from services.publisher import app as publisher
from services.publisher.webhook import webhook_routes

WITHOUT_GROUP = {"gateway", "publisher", "trainer", "harness"}


def bare(app: ModuleType, **given: Any) -> Any:
    """Handlers with nothing behind them: none is called here."""
    nothing = {
        field.name: None
        for field in fields(app.Handlers)
        if field.init and not field.name.startswith("_")
    }
    return app.Handlers(**{**nothing, **given})


@pytest.fixture
def read() -> set[tuple[str, str]]:
    """(topic, consumer group) of every row of every routing table."""
    broker = KafkaBroker()
    for service in ("trainer", "harness"):
        proposals = service == "harness"
        broker.include_router(host.routes(bare(host), service, proposals=proposals))
    broker.include_router(evaluator.routes(bare(evaluator)))
    hooks = webhook_routes(SecretStr("https://hooks.example/"))
    broker.include_router(publisher.routes(bare(publisher), *hooks))
    handlers = bare(experience, settings=Settings(), wants=Wants())
    broker.include_router(experience.routes(handlers, Settings()))
    return {
        (topic.name, subscriber.group_id or "")
        for subscriber in broker.subscribers
        for topic in subscriber.topics
    }


def test_the_registry_names_the_consumer_groups_that_there_are(read: set[tuple[str, str]]) -> None:
    named = {
        (topic.name, group)
        for topic in topics.ALL
        for group in topic.consumers
        if group not in WITHOUT_GROUP
    }
    assert named == read
