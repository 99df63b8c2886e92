"""Errors of the object store."""

from pathlib import Path

from reefcommon.errors import ReefError


class InUse(ReefError):
    """Another process has the directory."""


class Damaged(ReefError):
    """Bytes that were synced are not what was written."""

    def __init__(self, path: Path, start: int, end: int | None) -> None:
        upto = f"to {end}" if end is not None else "to its end"
        super().__init__(
            f"{path} is damaged from byte {start} {upto}. Restore the file from a backup, or start"
            " with REEF_OBJECTSTORE_SKIP_DAMAGE=true to go on without the objects in these bytes."
        )


class Refused(ReefError):
    """A request that is answered with an S3 error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class NoRoom(Refused):
    """The disk is full. No byte of the log has changed."""

    def __init__(self, message: str) -> None:
        # a 5xx is tried again by the broker's client, for three minutes
        super().__init__(507, "InsufficientStorage", message)
