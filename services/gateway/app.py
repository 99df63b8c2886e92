"""Composition of the gateway on its real adapters."""

from reefcommon import config
from reefcommon.settings import SystemSettings
from services.gateway.composition import SERVICE, Gateway, Lifespan, assemble
from services.gateway.edge import tokens
from services.gateway.exchange.tracing import Spans
from services.gateway.lifecycle import Adapters, Lifecycle
from services.gateway.settings import Settings

__all__ = ["SERVICE", "Gateway", "build"]


def build(system: SystemSettings, settings: Settings, spans: Spans | None = None) -> Gateway:
    """Build the gateway. Raises BadConfig if the tokens file or the serve.yaml is unusable."""
    outside = Adapters.of(system, settings)

    def lifespan(gateway: Gateway) -> Lifespan:
        return Lifecycle(gateway, settings, outside).span

    return assemble(
        settings,
        system,
        outside.ports(),
        access=tokens.read(settings.tokens_file, settings.limit),
        config=config.load(system.config) if system.config is not None else None,
        lifespan=lifespan,
        spans=spans,
    )
