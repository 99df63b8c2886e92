"""A model by its name: `smollm2`, `tiny`, `tiny-hint`, `tiny-count`, or a directory."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from reefstack.models.hf_files import Progress
from reefstack.models.smollm2 import write_smollm2
from reefstack.models.tiny import write_tiny
from reefstack.models.tiny_count import write_tiny_count
from reefstack.models.tiny_hint import write_tiny_hint

# Name -> directory in the cache, and writer. A changed converter gets a new number and a new cache.
_MODELS: Mapping[str, tuple[str, Callable[[Path, Progress], None]]] = {
    "smollm2": ("smollm2-135m-instruct-fp32-v1", write_smollm2),
    "tiny": ("tiny-v1", write_tiny),
    "tiny-hint": ("tiny-hint-v1", write_tiny_hint),
    "tiny-count": ("tiny-count-v1", write_tiny_count),
}
NAMES = tuple(_MODELS)


class UnknownModelError(ValueError):
    """The name is not known, and it is no directory with a config.json."""


def default_cache_dir() -> Path:
    """`$REEF_MODEL_CACHE`, else `$XDG_CACHE_HOME/reef/models`, else `~/.cache/reef/models`."""
    if explicit := os.environ.get("REEF_MODEL_CACHE"):
        return Path(explicit)
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "reef" / "models"


def prepare(
    name_or_path: str | Path, cache_dir: Path | None = None, progress: Progress | None = None
) -> Path:
    """The Hugging Face directory of a model, made on first use. Blocks for up to minutes.

    Raises:
        UnknownModelError: the name is not known, and is no directory with a config.json.
        FileNotFoundError: the package with SmolLM2's weights is not installed.
    """
    report = progress or (lambda _what, _share: None)
    if str(name_or_path) not in NAMES:
        return _existing(Path(name_or_path))
    name = str(name_or_path)
    directory, write = _MODELS[name]
    target = (cache_dir or default_cache_dir()) / directory
    if (target / "config.json").is_file():
        report(f"{name} is ready", 1.0)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        write(scratch, report)
        scratch.chmod(0o755)  # mkdtemp makes it private; services of other users may read it
        scratch.rename(target)
    except OSError:
        # Another process was first, with an equal copy.
        if not (target / "config.json").is_file():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    report(f"{name} is ready", 1.0)
    return target


def check(name_or_path: str | Path) -> None:
    """Check that `prepare` knows the name or finds the directory. Raises UnknownModelError."""
    if str(name_or_path) not in NAMES:
        _existing(Path(name_or_path))


def _existing(path: Path) -> Path:
    if not (path / "config.json").is_file():
        known = ", ".join(NAMES)
        msg = f"model {str(path)!r} is neither {known} nor a directory with a config.json"
        raise UnknownModelError(msg)
    return path
