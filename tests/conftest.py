"""Fixtures that every part of the tests may use."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.fixtures_stack"]

# How long an example takes says more about who else is on the machine than about the code.
settings.register_profile("shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared-machine")
