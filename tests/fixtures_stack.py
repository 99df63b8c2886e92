"""The real broker and the real release-head store on free loopback ports, once a test session.

async def test_x(kafka_bootstrap: str): ...   # Tansu in memory; use topic and group names of your own
async def test_y(redis_url: str): ...         # Valkey, append-only file on; use keys of your own
"""

from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal

from reefcommon.config import ServeConfig, parse
from reefstack.embedded import Options, Stack, embedded_stack

CONFIG: ServeConfig = parse("reef:\n  recipe: recipes.sao.recipe:SAORecipe\nmodel: tiny\n")


def _running(tmp_path_factory: pytest.TempPathFactory, role: str) -> Iterator[Stack]:
    options = Options(
        only=frozenset({role}), memory_broker=True, default_ports=False, create_topics=False
    )
    with start_blocking_portal() as portal:
        stack = embedded_stack(CONFIG, tmp_path_factory.mktemp(role), options)
        with portal.wrap_async_context_manager(stack) as running:
            yield running


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a Tansu broker that keeps its log in memory. No topic is there yet: `reefkit.kafka_topics.ensure_topics` makes them."""
    for stack in _running(tmp_path_factory, "kafka"):
        yield stack.kafka_bootstrap


@pytest.fixture
def own_kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The same, for one test alone: nobody else's events are in its topics."""
    for stack in _running(tmp_path_factory, "kafka"):
        yield stack.kafka_bootstrap


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """redis:// URL of a Valkey server."""
    for stack in _running(tmp_path_factory, "redis"):
        yield stack.redis_url
