"""The error tree. The kind of an error decides the fate of the event that raised it.

ReefError
├── Poison        can never work            -> dead-letter topic, with the reason
├── Transient     may work later            -> retried a bounded number of times, then dead
│   └── Unavailable  a system is away       -> retried until it is back; readiness fails meanwhile
│       └── Damaged  its content is damaged -> the same, until its owner has rebuilt it
├── Conflict      a lost compare-and-swap   -> dropped and counted; the winner's event counts
└── BadConfig     a person's mistake        -> shown to that person, with the remedy
"""


class ReefError(Exception):
    """Base of every error that Reef raises on purpose. A person may see `str(error)`."""


class Poison(ReefError):
    """The event can never be handled: malformed, contradictory, or refused by a rule."""


class Transient(ReefError):
    """The effect failed for now; the same event may succeed when tried again."""


class Unavailable(Transient):
    """An outside system (broker, store, heads, artifacts, engine) does not answer."""


class Slow(Unavailable):
    """An outside system did not answer in time. It may be busy, not away."""


class Damaged(Unavailable):
    """An outside system answers with damaged content.

    The message names the damage, and the source that it is rebuilt from.
    """


class Conflict(ReefError):
    """A compare-and-swap was lost, or the same id came with other content."""


class BadConfig(ReefError):
    """A setting or a `serve.yaml` is wrong. The message names the key, the value and the remedy."""
