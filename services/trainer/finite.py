"""The check for NaNs and infinities in saved states and exported adapters."""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reefcommon.errors import Poison
from services.trainer.ports import StateDamaged

# Serving nodes do not check their weights, and a NaN stays in all later steps.
TENSOR_FILES = (".pt", ".safetensors")


def check_new(staged: Path) -> None:
    """Check the output of a step. If it is bad, remove it and raise Poison."""
    if (fault := not_finite(staged)) is not None:
        shutil.rmtree(staged, ignore_errors=True)
        raise Poison(f"the step leaves {fault}, so that nothing of it is kept")


def check_saved(state: Path) -> None:
    """Check the start of a step. If it is bad, set it aside and raise StateDamaged."""
    # Without it the next step starts anew; with it every batch would be refused.
    if (fault := not_finite(state)) is not None:
        aside = state.with_name(f"{state.name}.damaged")
        shutil.rmtree(aside, ignore_errors=True)
        state.rename(aside)
        raise StateDamaged(
            f"the saved state {state.name} holds {fault}: it is set aside, and the next batch"
            " starts without it"
        )


def not_finite(tree: Path) -> str | None:
    """Name the first tensor below `tree` with a NaN or an infinity, or a torn file, if any."""
    for path in sorted(tree.rglob("*")):
        if path.suffix in TENSOR_FILES:
            try:
                loaded = _loaded(path)
            except OSError:  # of the disk, not of the file
                raise
            except Exception as error:  # noqa: BLE001  # each format has errors of its own
                return f"{path.relative_to(tree)}, which cannot be read ({type(error).__name__})"
            for name, value in _values("", loaded):
                if not _finite(value):
                    return f"{path.relative_to(tree)}, {name}: numbers that are not finite"
    return None


def _loaded(path: Path) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    import torch

    return torch.load(path, weights_only=True, map_location="cpu")


def _values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _values(f"{name}.{key}" if name else str(key), item)
    else:
        yield name, value


def _finite(value: Any) -> bool:
    import torch

    if isinstance(value, torch.Tensor):
        return bool(torch.isfinite(value).all())  # true of every integer
    return not isinstance(value, float) or math.isfinite(value)
