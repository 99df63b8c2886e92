"""Errors of the commands."""

from reefcommon.errors import ReefError


class CommandFailed(ReefError):
    """A command could not be carried out; the message is meant for a person."""
