"""Write the base model and point `/models/current` to it."""

import sys
from functools import partial
from pathlib import Path

import structlog

from reefcommon.config import load
from reefcommon.errors import BadConfig
from reefcommon.settings import SystemSettings
from reefkit.telemetry import set_up
from reefstack.models import UnknownModelError, prepare

log = structlog.get_logger()


def point(link: Path, target: Path) -> None:
    """Make `link` a symbolic link to `target`, atomically."""
    link.parent.mkdir(parents=True, exist_ok=True)
    # A rename replaces a link in one step; a symlink call would fail if it exists.
    fresh = link.with_name(f".{link.name}.new")
    fresh.unlink(missing_ok=True)
    # Relative where it lies beside the link: the volume may be mounted elsewhere.
    fresh.symlink_to(target.name if target.parent == link.parent else target)
    fresh.replace(link)


def main() -> int:
    """Exit status 2 if the configuration or the model's name is wrong."""
    set_up("model")
    system = SystemSettings.load()
    link = system.model_path
    if system.config is None or link is None:
        sys.stderr.write("model: REEF_CONFIG and REEF_MODEL_PATH must be set\n")
        return 2
    try:
        name = load(system.config).model.name
        progress = partial(log.debug, "model_progress")
        path = prepare(name, link.parent, lambda what, share: progress(what=what, share=share))
    except (BadConfig, UnknownModelError, FileNotFoundError) as error:
        sys.stderr.write(f"model: {error}\n")
        return 2
    point(link, path)
    log.info("model_ready", model=name, path=str(path), link=str(link))
    return 0


if __name__ == "__main__":
    sys.exit(main())
