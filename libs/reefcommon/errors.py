"""The error tree. The kind of an error decides what happens to the event that raised it.

ReefError
├── Poison        can never work            -> dead-letter topic, with the reason
├── Transient     may work later            -> retried with delay, a bounded number of times, then dead-lettered
│   └── Unavailable  an outside system is away -> retried with a capped delay until it is back; readiness fails meanwhile
│       ├── Slow     it answers too slowly     -> the same; it is not known to be away
│       └── Damaged  what it holds is damaged  -> the same, until its owner has made it anew
├── Conflict      a lost compare-and-swap   -> dropped and counted; the winner's event is the truth
└── BadConfig     a person's mistake        -> shown to that person: what was wrong, and what to do
"""


class ReefError(Exception):
    """Base of every error that Reef raises on purpose. `str(error)` is fit to be shown to a person."""


class Poison(ReefError):
    """The event can never be handled: malformed, contradictory, or refused by a rule."""


class Transient(ReefError):
    """The effect failed for now; the same event may succeed when tried again."""


class Unavailable(Transient):
    """An outside system (broker, store, heads, artifacts, engine) does not answer."""


class Slow(Unavailable):
    """An outside system did not answer in time. It may be busy, not away."""


class Damaged(Unavailable):
    """An outside system answers with what nobody can have written. The message names what is damaged, and who makes it anew from what."""


class Conflict(ReefError):
    """A compare-and-swap was lost, or the same id came with other content."""


class BadConfig(ReefError):
    """A setting or a `serve.yaml` is wrong. The message names the key, the value and what is allowed."""
