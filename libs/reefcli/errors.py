"""Errors of the commands."""

from reefcommon.errors import ReefError


class CommandFailed(ReefError):
    """A command could not do what it was asked for."""
