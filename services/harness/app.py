"""Composition of the harness service: the harness recipes of `serve.yaml`."""

from functools import partial

from starlette.applications import Starlette

from reefcommon.harness.admission import CHAT
from reefcommon.harness.tree import HarnessRecipe
from reefcommon.settings import SystemSettings
from reefkit.jobs.host import host_service
from services.harness.executor import HarnessExecutor
from services.harness.settings import Settings

SERVICE = "harness"


def application(system: SystemSettings, settings: Settings) -> Starlette:
    """Build the service on its real adapters. Raises BadConfig if `serve.yaml` is unusable."""
    make = partial(
        HarnessExecutor,
        adapter=CHAT,
        propose_timeout_s=settings.propose_timeout_s,
        max_waiting_proposals=settings.max_waiting_proposals,
    )
    return host_service(SERVICE, system, settings, HarnessRecipe, make).app()
