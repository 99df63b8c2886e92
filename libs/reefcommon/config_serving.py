"""The section `serving` of `serve.yaml`: the nodes, and the endpoints that answer users."""

from typing import Annotated

from pydantic import ConfigDict, Field

from reefcommon.config_sections import SERVED, ModelName, Section, by_scenario, of_scenario
from reefcommon.events import Sampling


class SamplingDefaults(Sampling):
    """Sampling parameters for requests that leave them out."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Upstreams = tuple[ModelName, ...]
UpstreamsByScenario = Annotated[
    Upstreams | dict[str, Upstreams],
    by_scenario(list, tuple, form="a list of entries of `models:`, or of `served`"),
]


class ServingSection(Section):
    engines: tuple[str, ...] = ()
    """base URLs of running engines; empty: start the embedded one"""
    via: str = ""
    """base URL of a proxy in front of the embedded engine, which all services ask instead of it"""
    upstreams: UpstreamsByScenario = (SERVED,)
    """entries of `models:` that answer users; the next is asked if one is away, limits requests or
    fails before its first byte; `served`: the serving nodes; or a mapping from scenarios to these
    """
    model_map: dict[str, Upstreams] = Field({}, validate_default=False)
    """further names that a request may give as `model`, each with the entries that answer it"""
    resident_adapters: int = Field(3, ge=2, le=64)
    """releases kept loaded per scenario, so that a rollback is instant"""
    sampling: SamplingDefaults = SamplingDefaults()
    """defaults of nodes that do not state theirs, if a request leaves them out (`temperature`,
    `top_p`, …)"""

    def upstreams_of(self, scenario: str) -> Upstreams:
        """Return the entries of `models:` that answer a scenario's users, in order."""
        return of_scenario(self.upstreams, scenario, (SERVED,))

    @property
    def orders(self) -> list[Upstreams]:
        by = self.upstreams
        return [*(by.values() if isinstance(by, dict) else (by,)), *self.model_map.values()]

    @property
    def asked(self) -> set[str]:
        """Return all entries of `models:` that may answer users."""
        return {name for order in self.orders for name in order}
