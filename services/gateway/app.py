"""Composition of the gateway on its real adapters."""

from reefcommon import config
from reefcommon.settings import SystemSettings
from services.gateway.composition import SERVICE, Gateway, assemble
from services.gateway.edge import tokens
from services.gateway.exchange.tracing import Spans
from services.gateway.lifecycle import Adapters, Lifecycle
from services.gateway.settings import Settings

__all__ = ["SERVICE", "Gateway", "build"]


def build(system: SystemSettings, settings: Settings, spans: Spans | None = None) -> Gateway:
    """Build the gateway. Raises BadConfig if the tokens file or the serve.yaml is unusable."""
    served = config.load(system.config) if system.config is not None else None
    outside = Adapters.of(system, settings, served)
    return assemble(
        settings,
        system,
        outside,
        access=tokens.read(settings.tokens_file, settings.limit),
        config=served,
        lifespan=lambda gateway: Lifecycle(gateway, settings, outside).span,
        spans=spans,
    )
