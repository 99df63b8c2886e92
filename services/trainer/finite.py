"""Whether every number of a saved state, or of an exported adapter, is finite. Serving nodes do not ask, and a NaN never heals."""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reefcommon.errors import Poison

TENSOR_FILES = (".pt", ".safetensors")


def check_new(staged: Path) -> None:
    """Of what a step leaves behind, before it counts. Raises Poison; then it is gone."""
    if (what := not_finite(staged)) is not None:
        shutil.rmtree(staged, ignore_errors=True)
        raise Poison(f"the step leaves {what}, so that nothing of it is kept")


def check_saved(state: Path) -> None:
    """Of a state that a step starts from: one was saved before states were looked at, or the disk has changed it.

    Raises:
        Poison: it is set aside; the next batch starts without it.
    """
    if (what := not_finite(state)) is not None:
        aside = state.with_name(f"{state.name}.damaged")
        shutil.rmtree(aside, ignore_errors=True)
        state.rename(aside)
        raise Poison(
            f"the saved state {state.name} holds {what}: it is set aside, and the next batch starts without it"
        )


def not_finite(tree: Path) -> str | None:
    """Which number below `tree` is NaN or infinite, in words; None where all are finite. Only files of tensors are looked at."""
    for path in sorted(tree.rglob("*")):
        if path.suffix in TENSOR_FILES:
            for name, value in _values("", _loaded(path)):
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
    """The leaves of nested dictionaries and lists, each with the way to it."""
    if isinstance(value, dict | list | tuple):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _values(f"{name}.{key}" if name else str(key), one)
    else:
        yield name, value


def _finite(value: Any) -> bool:
    import torch

    if isinstance(value, torch.Tensor):
        return not (value.is_floating_point() or value.is_complex()) or bool(
            torch.isfinite(value).all()
        )
    return not isinstance(value, float) or math.isfinite(value)
