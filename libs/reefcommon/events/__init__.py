"""The events: past tense, frozen, decoded for ever. A new meaning is a new type.

Every event has `type`, `event_id` (equal id and content is a repeat), `at` (UTC), `scenario` and
the W3C `traceparent` of its cause. Readers ignore unknown fields.
"""

# experience   an exchange, a report on it, and the units that they make
# learning     signals, steps, refusals, candidates, verdicts
# publication  the release chain, commands, dead letters

from reefcommon.events.base import *
from reefcommon.events.base import Event
from reefcommon.events.experience import *
from reefcommon.events.learning import *
from reefcommon.events.publication import *

ALL: tuple[type[Event], ...] = tuple(
    cls for base in Event.__subclasses__() for cls in (base.__subclasses__() or [base])
)
"""All types of events, in the order of the modules above."""
