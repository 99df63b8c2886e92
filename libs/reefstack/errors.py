"""Errors of the embedded stack. Every message says what to do."""

from reefcommon.errors import ReefError


class CannotStart(ReefError):
    """The embedded stack, or a program of it, cannot be started. The message says what to do."""


class StackFailed(ReefError):
    """A program of the stack died for good. The message ends with its last log lines."""
