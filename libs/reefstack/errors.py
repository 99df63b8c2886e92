"""Errors of the embedded stack."""

from reefcommon.errors import ReefError


class CannotStart(ReefError):
    """The stack cannot be started. The message says what to do."""


class StackFailed(ReefError):
    """A program died for good. The message ends with its last log lines."""
