"""Fixtures that every part of the tests may use."""

from collections.abc import Iterator
from functools import partial

import clickhouse_connect
import pytest
import structlog
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.fixtures_stack", "pytester"]

# How long an example takes says more about who else is on the machine than about the code.
settings.register_profile(
    "shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared-machine")


_get_client = clickhouse_connect.get_client
_MARK_OF = {"kafka_bootstrap": "broker", "own_kafka_bootstrap": "broker", "redis_url": "redis"}


@pytest.fixture(autouse=True)
def real_stores_need_their_mark(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuse the real broker, Valkey and chDB to a test without the mark: it is left out by that."""
    marks = {mark.name for mark in request.node.iter_markers()}
    if "e2e" in marks:
        return
    for fixture, mark in _MARK_OF.items():
        if fixture in request.fixturenames and mark not in marks:
            pytest.fail(f"{fixture} needs the mark `{mark}`")
    if "store" not in marks:
        monkeypatch.setattr(clickhouse_connect, "get_client", _without_chdb)


def _without_chdb(*args, **options):
    if options.get("interface") == "chdb":
        pytest.fail("chDB needs the mark `store`")
    return _get_client(*args, **options)


@pytest.fixture(autouse=True, scope="session")
def loggers_that_can_be_captured() -> Iterator[None]:
    """A logger that was cached keeps its processors for good: after a test that sets a service up, others would capture nothing of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", partial(_uncached, structlog.configure))
        yield


def _uncached(configure, *, cache_logger_on_first_use=False, **options):
    configure(cache_logger_on_first_use=False, **options)
