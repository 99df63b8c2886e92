"""Fixtures that every part of the tests may use."""

pytest_plugins = ["tests.fixtures_stack"]
