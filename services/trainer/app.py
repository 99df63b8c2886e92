"""Composition of the trainer: each weight recipe has a step process."""

import shutil
from functools import partial
from typing import Any

from starlette.applications import Starlette

from reefcommon.errors import BadConfig
from reefcommon.recipe import WeightRecipe
from reefcommon.settings import SystemSettings
from reefkit.jobs.context import Kit
from reefkit.jobs.host import host_service
from reefkit.recipe_binding import Binding
from services.trainer.child import ChildProcess
from services.trainer.executor import WeightExecutor
from services.trainer.settings import Settings
from services.trainer.states import SavedStates

SERVICE = "trainer"


def executor(
    binding: Binding[Any], kit: Kit, *, system: SystemSettings, settings: Settings
) -> WeightExecutor:
    """Build the executor of a binding. Raises BadConfig if no base model is named."""
    if system.model_path is None:
        needs = "the trainer needs the base model as a Hugging Face directory"
        raise BadConfig(f"REEF_MODEL_PATH is not set: {needs}")
    # The cache of the version before, under another name now.
    shutil.rmtree(kit.home / "adapters", ignore_errors=True)
    shutil.rmtree(kit.home / "batches", ignore_errors=True)  # of steps that were killed
    log_path = kit.home / "logs" / f"{binding.scenario}-{binding.recipe.name}.log"
    timeout_s, niceness = settings.step_timeout_s, settings.niceness
    process = ChildProcess(binding, system.model_path, log_path, timeout_s, niceness)
    states, kept = SavedStates(kit.home / "states"), settings.kept_states
    return WeightExecutor(binding, kit, states, process, kept_states=kept)


def application(system: SystemSettings, settings: Settings) -> Starlette:
    make = partial(executor, system=system, settings=settings)
    return host_service(SERVICE, system, settings, WeightRecipe, make).app()
