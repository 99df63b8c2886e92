"""Checks of a serve.yaml before anything starts, by the services' own rules.

Each raises BadConfig with the wrong key.
"""

import re
import tempfile
from pathlib import Path

from reefcommon.config import ServeConfig, load
from reefcommon.errors import BadConfig
from reefcommon.evaluation import check_names, evaluation_of
from reefcommon.evaluator import Evaluator
from reefcommon.recipe_loading import load_recipe
from reefstack.errors import CannotStart
from reefstack.models import UnknownModelError, check
from reefstack.state import why_no_directory


def read_config(path: Path) -> ServeConfig:
    """Read a serve.yaml. If `recipe` is wrong, the error names a close installed recipe."""
    try:
        return load(path)
    except BadConfig as error:
        advice = ""
        if named := re.search(r"recipe: must be of the form .* \(got '([^']+)'\)", str(error)):
            from reefcli.commands.recipes import meant

            advice = meant(named[1])
        raise BadConfig("\n".join(filter(None, (str(error), advice)))) from None


def check_config(config: ServeConfig) -> None:
    """Raise for everything that a started service would refuse."""
    own = [evaluation_of(load_recipe(b.recipe, b.knobs), b.recipe) for b in config.reef]
    check_names(config)
    try:
        check(config.model.name)
    except UnknownModelError as error:
        raise BadConfig(f"model.name: {error}") from None
    if config.gateway.tokens_file is not None:
        # Imported here: the services cost a second that other commands do not need.
        from services.gateway.edge import tokens

        tokens.read(config.gateway.tokens_file)
    if config.models:
        # Imported here for the same reason.
        from reefkit.recipes.endpoint import key_of

        for name, entry in config.models.items():
            key_of(name, entry)
    if (
        any(isinstance(each, Evaluator) for each in own)
        or config.evaluation.tasks
        or config.evaluation.score
        or config.evaluation.runner
    ):
        # Imported here for the same reason.
        from services.evaluator.plans import Plans

        Plans.load(config)


def check_state_dir(state_dir: Path) -> Path:
    """Check that the stack can keep its state there; leaves no file behind.

    Returns the nearest directory that exists.

    Raises:
        CannotStart: it is a file, or cannot be written.
    """
    if reason := why_no_directory(state_dir):
        raise CannotStart(reason)
    here = state_dir.absolute()
    try:
        there = next(path for path in (here, *here.parents) if path.exists())
        # Permission bits do not tell it (root, read-only mounts): try to write.
        with tempfile.TemporaryFile(dir=there):
            return there
    except OSError as error:
        fault = f"cannot write to the state directory {state_dir}: {error.strerror}"
        raise CannotStart(f"{fault}. Choose another with --state-dir.") from None
