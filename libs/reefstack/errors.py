"""Errors of the embedded stack. Every message says what to do."""

from reefcommon.errors import ReefError


class CannotStart(ReefError):
    """The embedded stack, or one program of it, cannot be started. The message says why and what to do."""


class StackFailed(ReefError):
    """A program of the running stack died for good; the message ends with its last log lines."""
