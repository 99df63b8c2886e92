"""Fixtures that every part of the tests may use."""

import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import clickhouse_connect
import httpx
import pytest
import structlog
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.fixtures_stack", "tests.late_imports", "pytester"]

# How long an example takes says more about who else is on the machine than about the code.
# `make test ARGS=--hypothesis-profile=thorough` looks at twenty times as many.
for profile, examples in (("shared-machine", 50), ("thorough", 1000)):
    settings.register_profile(
        profile, deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("shared-machine")

# Each client would read the certificates of the world: 40 ms of CPU, and all servers are on loopback.
httpx._transports.default.create_ssl_context = cache(httpx.create_ssl_context)

_get_client = clickhouse_connect.get_client
_MARK_OF = {"kafka_bootstrap": "broker", "own_kafka_bootstrap": "broker", "redis_url": "redis"}
E2E = ("e2e", "chaos", "soak")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m e2e` imports only the folders that have such tests."""
    is_folder = collection_path.parent == Path(__file__).parent and collection_path.is_dir()
    if is_folder and config.option.markexpr == "e2e" and collection_path.name not in E2E:
        return True
    return None


_LONGEST_FIRST = ("learning", "smollm2", "broker", "engine", "store", "redis", "lfs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Several workers begin with the files of long tests: the last file that is begun is waited for by all."""
    if not hasattr(config, "workerinput"):
        return
    rank: dict[Path, int] = {}
    for path in {item.path for item in items}:
        marks = set(re.findall(r"\bmark\.(\w+)", path.read_text(encoding="utf-8")))
        found = (n for n, name in enumerate(_LONGEST_FIRST) if name in marks)
        rank[path] = min(found, default=len(_LONGEST_FIRST))
    items.sort(key=lambda item: rank[item.path])


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


@pytest.fixture(autouse=True)
def short_kafka_sessions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker takes half a session for a first join and two after a kill: idle time. The e2e tests keep the session of the product."""
    if request.node.get_closest_marker("e2e") is None:
        monkeypatch.setenv("REEF_KAFKA_SESSION_TIMEOUT_MS", "2000")


def _without_chdb(*args, **options):
    if options.get("interface") == "chdb":
        pytest.fail("chDB needs the mark `store`")
    return _get_client(*args, **options)


BASE_LOGS: dict[str, object] = {}


@pytest.fixture(autouse=True, scope="session")
def loggers_that_can_be_captured() -> Iterator[None]:
    """A logger that was cached keeps its processors for good: after a test that sets a service up, others would capture nothing of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", partial(_uncached, structlog.configure))
        # The usual renderer shows the local variables of each frame: 0.2 s of CPU an exception.
        plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])
        BASE_LOGS.update(structlog.get_config())
        yield


@pytest.fixture(autouse=True)
def logs_as_they_were(loggers_that_can_be_captured: None) -> None:
    """A service that a test sets up may drop levels that another test wants to see."""
    if structlog.get_config() != BASE_LOGS:
        structlog.configure(**BASE_LOGS)


def _uncached(configure, *, cache_logger_on_first_use=False, **options):
    configure(cache_logger_on_first_use=False, **options)
