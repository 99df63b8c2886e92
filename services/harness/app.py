"""Composition of the harness service: the harness recipes of `serve.yaml`."""

from starlette.applications import Starlette

from reefcommon.config import ServeConfig, load
from reefcommon.evaluation import choose
from reefcommon.evaluator import Evaluator
from reefcommon.harness.admission import CHAT, Adapter
from reefcommon.harness.agent import find_agent
from reefcommon.harness.tree import HarnessRecipe
from reefcommon.settings import SystemSettings
from reefkit.jobs.context import Kit
from reefkit.jobs.host import host_service
from reefkit.recipe_binding import Binding
from services.harness.executor import HarnessExecutor
from services.harness.settings import Settings

SERVICE = "harness"


def adapter_of(served: ServeConfig, binding: Binding[HarnessRecipe]) -> Adapter:
    """Return the agent whose runs judge the candidates, else the chat. Raises BadConfig."""
    evaluator = choose(served, binding.scenario, binding.dotted).evaluator or Evaluator()
    section = served.evaluation
    if (section.runner_of(binding.scenario) or evaluator.runner) != "agent":
        return CHAT
    return find_agent(section.agent.adapter).adapter


def application(system: SystemSettings, settings: Settings) -> Starlette:
    """Build the service on its real adapters. Raises BadConfig if `serve.yaml` is unusable."""
    served = load(system.config) if system.config else ServeConfig(reef=())
    limits = settings.propose_timeout_s, settings.max_waiting_proposals, settings.step_calls

    def make(binding: Binding[HarnessRecipe], kit: Kit) -> HarnessExecutor:
        return HarnessExecutor(binding, kit, adapter_of(served, binding), *limits)

    return host_service(SERVICE, system, settings, HarnessRecipe, make).app()
