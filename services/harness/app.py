"""Composition of the harness service: the harness recipes of `serve.yaml`."""

from functools import partial
from typing import Any

from starlette.applications import Starlette

from reefcommon import config
from reefcommon.harness.admission import CHAT
from reefcommon.settings import SystemSettings
from reefkit.jobs.host import Kit, host_service
from reefkit.recipe_binding import Binding, harness_bindings
from services.harness.executor import HarnessExecutor
from services.harness.settings import Settings

SERVICE = "harness"


def executor(binding: Binding[Any], kit: Kit, *, settings: Settings) -> HarnessExecutor:
    return HarnessExecutor(binding, kit, CHAT, propose_timeout_s=settings.propose_timeout_s)


def application(system: SystemSettings, settings: Settings) -> Starlette:
    """Build the service on its real adapters. Raises BadConfig if `serve.yaml` is unusable."""
    served = config.load(system.config) if system.config else None
    bindings = harness_bindings(served)
    make = partial(executor, settings=settings)
    return host_service(SERVICE, system, settings, bindings, make).app()
