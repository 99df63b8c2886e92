"""Errors of the embedded stack."""

from reefcommon.errors import ReefError


class CannotStart(ReefError):
    """The stack cannot be started. The message says what to do."""


class PortTaken(CannotStart):
    """Another program took `port` after it was chosen."""

    def __init__(self, message: str, port: int) -> None:
        super().__init__(message)
        self.port = port


class StackFailed(ReefError):
    """A program died for good. The message ends with its last log lines."""
