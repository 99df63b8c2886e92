"""What the command line and the embedded stack raise: every message is one that a person can act on."""

from reefcommon.errors import ReefError


class CannotStart(ReefError):
    """The embedded stack, or one program of it, cannot be started. The message says why and what to do."""


class StackFailed(ReefError):
    """A program of the running stack died for good; the message ends with its last log lines."""


class CommandFailed(ReefError):
    """A command could not do what it was asked for."""
