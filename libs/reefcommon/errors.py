"""The error tree. The kind of an error decides the fate of the event that raised it."""

# ReefError
# ├── Poison        can never work            -> dead-letter topic, with the reason
# ├── Transient     may work later            -> retried a bounded number of times, then dead
# │   └── Unavailable  a system is away       -> retried until it is back; readiness fails meanwhile
# │       ├── Slow     it answers too late    -> the same
# │       └── Damaged  its content is damaged -> the same, until its owner has rebuilt it
# ├── Conflict      a lost compare-and-swap   -> dropped and counted; the winner's event counts
# └── BadConfig     a person's mistake        -> shown to that person, with the remedy

import os


class ReefError(Exception):
    """Base of all errors of Reef. A person may see `str(error)`."""


class Poison(ReefError):
    """The event can never be handled."""


class Transient(ReefError):
    """The effect failed; a repeat may succeed."""


class Unavailable(Transient):
    """An outside system (broker, store, heads, artifacts, engine) does not answer."""


class Slow(Unavailable):
    """An outside system did not answer in time."""


class Damaged(Unavailable):
    """An outside system has damaged content. The message names the source to rebuild from."""


class Conflict(ReefError):
    """A lost compare-and-swap, or an id with other content."""


class BadConfig(ReefError):
    """A wrong setting or `serve.yaml`. The message names the key, the value and the remedy."""


def said(error: Exception) -> str:
    """Return the words of a failed connection, as `Connection refused`, for a person."""
    # The numbers of name servers are negative, and those of TLS ("[SSL: ...") are its own.
    if isinstance(error, OSError) and error.errno and error.strerror:
        own = error.errno < 0 or error.strerror.startswith("[SSL")
        return error.strerror if own else os.strerror(error.errno)
    silent = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    return str(error) or silent
