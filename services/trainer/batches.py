"""The file of a batch: a unit a line, as JSON, with its signal."""

# A batch of long rollouts is hundreds of megabytes: too large for a line in a pipe.

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile

from pydantic import TypeAdapter

from reefcommon.events import AnyUnit, Unit

_UNIT: TypeAdapter[AnyUnit] = TypeAdapter(AnyUnit)


@contextmanager
def batch_file(home: Path, batch: Sequence[Unit]) -> Iterator[Path]:
    """Write a batch below `home` for the time of a step. Blocks."""
    home.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=home, suffix=".jsonl") as stream:
        yield write_batch(Path(stream.name), batch)


def write_batch(path: Path, batch: Sequence[Unit]) -> Path:
    with path.open("wb") as stream:
        stream.writelines(unit.model_dump_json().encode() + b"\n" for unit in batch)
    return path


def read_batch(path: Path) -> tuple[AnyUnit, ...]:
    """Raises OSError, or ValueError if it is no file of units."""
    with path.open("rb") as stream:
        return tuple(_UNIT.validate_json(line) for line in stream)
