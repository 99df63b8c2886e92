"""Fixtures that every part of the tests may use."""

from collections.abc import Iterator
from functools import partial

import pytest
import structlog
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.fixtures_stack"]

# How long an example takes says more about who else is on the machine than about the code.
settings.register_profile(
    "shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared-machine")


@pytest.fixture(autouse=True, scope="session")
def loggers_that_can_be_captured() -> Iterator[None]:
    """A logger that was cached keeps its processors for good: after a test that sets a service up, others would capture nothing of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", partial(_uncached, structlog.configure))
        yield


def _uncached(configure, *, cache_logger_on_first_use=False, **options):
    configure(cache_logger_on_first_use=False, **options)
