"""Full weights on disk, by the headers of their safetensors files."""

import hashlib
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import orjson

from reefcommon.errors import Poison

_TORCH_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
_MAX_HEADER_BYTES = 100_000_000  # the format's own bound


@dataclass(frozen=True, slots=True)
class Stored:
    """The bytes of a tensor in a file. `dtype` is safetensors' name."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    def digest(self) -> str:
        """Return the SHA-256 of the tensor as float32, as a node states it."""
        with (
            self.file.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as whole,
            # Released before the map is closed, which would fail else.
            memoryview(whole)[self.start : self.end] as view,
        ):
            wide = view if self.dtype == "F32" else _widened(view, self.dtype)
            return hashlib.sha256(wide).hexdigest()


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The tensors of a checkpoint in broadcast order: by name."""

    directory: Path
    tensors: dict[str, Stored]

    @classmethod
    def read(cls, directory: Path) -> "WeightFiles":
        found: dict[str, Stored] = {}
        for file in sorted(directory.glob("*.safetensors")):
            found |= _read_header(file)
        if not found:
            remedy = "full weights are a Hugging Face checkpoint"
            raise Poison(f"there are no safetensors files at {directory}: {remedy}")
        return cls(directory, dict(sorted(found.items())))

    def announcement(self) -> dict[str, list[object]]:
        return {
            "names": list(self.tensors),
            "dtype_names": [_TORCH_NAMES[tensor.dtype] for tensor in self.tensors.values()],
            "shapes": [list(tensor.shape) for tensor in self.tensors.values()],
        }

    def digests(self) -> dict[str, str]:
        return {name: tensor.digest() for name, tensor in self.tensors.items()}


def differing(expected: dict[str, str], served: dict[str, str]) -> list[str]:
    """Return the names of tensors that a node serves with other contents than expected."""
    # A name that is not in the files is a tied weight: it must equal a tensor that is.
    wrong = [name for name, digest in expected.items() if served.get(name) != digest]
    known = set(expected.values())
    others = [name for name, digest in served.items() if digest not in known]
    return wrong + [name for name in others if name not in expected]


def _read_header(file: Path) -> dict[str, Stored]:
    found: dict[str, Stored] = {}
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > _MAX_HEADER_BYTES:
                raise ValueError(f"its header has {length} bytes")
            header = orjson.loads(stream.read(length))
        header.pop("__metadata__", None)
        for name, row in header.items():
            dtype, (start, end) = row["dtype"], row["data_offsets"]
            if dtype not in _TORCH_NAMES:
                remedy = f"use one of {', '.join(_TORCH_NAMES)}"
                raise Poison(f"weight {name!r} has dtype {dtype}, which cannot be served; {remedy}")
            begin = 8 + length
            found[name] = Stored(file, dtype, tuple(row["shape"]), begin + start, begin + end)
    except (struct.error, ValueError, LookupError, TypeError, AttributeError) as error:
        raise Poison(f"{file.name} is not a safetensors file: {error!r}") from error
    return found


def _widened(view: memoryview, dtype: str) -> bytes:
    import numpy as np

    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(view, np.uint16).astype(np.uint32) << 16).tobytes()
    narrow = np.frombuffer(view, np.float16 if dtype == "F16" else np.float64)
    return narrow.astype(np.float32).tobytes()
