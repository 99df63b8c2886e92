"""Tests within a test load the plugins that they need: other packages bring plugins of their own."""

import pytest


@pytest.fixture
def pytester(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    named = "-p pytest_asyncio.plugin -p xdist.plugin -p no:cacheprovider"
    monkeypatch.setenv("PYTEST_ADDOPTS", named)
    return pytester
