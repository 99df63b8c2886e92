"""Settings of single services: one prefix each, typing mistakes refused, what others read let be."""

import pytest

from reefcommon.errors import BadConfig
from reefcommon.settings import SystemSettings
from reefstack.settings import Settings as Stack
from services.engine.settings import Settings as Engine
from services.evaluator.settings import Settings as Evaluator
from services.experience.settings import Settings as Experience
from services.gateway.settings import Settings as Gateway
from services.harness.settings import Settings as Harness
from services.publisher.settings import Settings as Publisher
from services.trainer.settings import Settings as Trainer

SERVICES = [Trainer, Harness, Evaluator, Publisher]


@pytest.mark.parametrize("settings", SERVICES)
def test_a_service_reads_its_own_prefix_and_leaves_its_url_to_others(
    settings: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = str(settings.model_config.get("env_prefix"))
    assert prefix == f"REEF_{settings.__module__.split('.')[1].upper()}_"
    monkeypatch.setenv(prefix + "URL", "http://elsewhere:7000")
    service, default = prefix.split("_")[1].lower(), SystemSettings.model_fields
    assert settings.load().port is None
    assert SystemSettings.load().port_of(service) == 7000
    monkeypatch.setenv(prefix + "URL", "http://elsewhere")
    assert default[f"{service}_url"].default.endswith(str(SystemSettings.load().port_of(service)))
    monkeypatch.setenv(prefix + "PORT", "7001")
    monkeypatch.setenv(prefix + "DRAIN_S", "3")
    assert (settings.load().port, settings.load().drain_s) == (7001, 3)


@pytest.mark.parametrize("settings", [*SERVICES, Stack])
def test_a_mistake_is_named(settings: type[Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = str(settings.model_config.get("env_prefix"))
    first = next(
        name for name, field in settings.model_fields.items() if field.annotation in (int, float)
    )
    monkeypatch.setenv(prefix + first.upper(), "-1")
    with pytest.raises(BadConfig, match=rf"(?i){prefix}{first}: .*-1"):
        settings.load()
    monkeypatch.setenv(prefix + "DRIAN_S", "3")
    with pytest.raises(BadConfig, match=f"unknown settings: {prefix}DRIAN_S; allowed: "):
        settings.load()


@pytest.mark.parametrize("settings", [*SERVICES, Experience, Gateway, Engine, Stack])
def test_kubernetes_words_on_a_service_are_no_settings(
    settings: type[Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each container of a namespace has them, for a service that is called `reef-trainer`."""
    prefix = str(settings.model_config.get("env_prefix"))
    address = {
        "SERVICE_HOST": "10.0.0.11",
        "SERVICE_PORT": "8912",
        "SERVICE_PORT_HTTP": "8912",
        "PORT": "tcp://10.0.0.11:8912",
        "PORT_8912_TCP": "tcp://10.0.0.11:8912",
        "PORT_8912_TCP_PROTO": "tcp",
        "PORT_8912_TCP_PORT": "8912",
        "PORT_8912_TCP_ADDR": "10.0.0.11",
    }
    for name, value in address.items():
        monkeypatch.setenv(prefix + name, value)
    given = {"model_path": "."} if settings is Engine else {}
    assert settings.load(**given) == settings(**given)
    monkeypatch.setenv(prefix + "PORT", "700x")
    if "port" in settings.model_fields:
        with pytest.raises(BadConfig, match="700x"):
            settings.load(**given)


def test_a_supervisor_has_no_url_that_others_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REEF_STACK_URL", "x")
    with pytest.raises(BadConfig, match="REEF_STACK_URL"):
        Stack.load()


@pytest.mark.parametrize("name", ["ENGINE_URLS", "EXPERIENCE_URL", "TRAINER_URL"])
@pytest.mark.parametrize(
    "url", ["here", "ftp://u:secret@h", "http://", "http://u:secret@h:99999", "http://h:x"]
)
def test_an_address_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, url: str
) -> None:
    """At the start, and without a password that it may hold."""
    monkeypatch.setenv(f"REEF_{name}", url)
    with pytest.raises(BadConfig, match=rf"(?i){name}: must be of the form http://") as caught:
        SystemSettings.load()
    assert "secret" not in str(caught.value)


def test_addresses_of_several_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REEF_ENGINE_URLS", "http://u:p@a:1/v, https://[::1],")
    assert SystemSettings.load().engines == ("http://u:p@a:1/v", "https://[::1]")
    monkeypatch.setenv("REEF_ENGINE_URLS", "")
    assert SystemSettings.load().engines == ()
