"""The logs of the programs, bounded in size."""

# The programs append to their files themselves, so that a killed supervisor costs no line. A file
# that is too large is copied and emptied. Lines that are written during the copy can be lost.

import shutil
from pathlib import Path

MAX_BYTES = 16 * 1024 * 1024


def rotate(directory: Path, max_bytes: int = MAX_BYTES) -> list[Path]:
    """Move the text of each `*.log` above `max_bytes` to `<name>.log.1`. Return the moved."""
    rotated = []
    for path in sorted(directory.glob("*.log")):
        if path.stat().st_size > max_bytes:
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            with path.open("r+b") as file:
                file.truncate(0)
            rotated.append(path)
    return rotated


def log_tail(path: Path, lines: int = 20) -> str:
    """The last lines of a log, indented."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - 16_384, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return "  (no log)"
    return "\n".join(f"  {line[:400]}" for line in text.splitlines()[-lines:]) or "  (empty)"
