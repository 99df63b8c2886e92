"""Thoughts of the model, as clients carry them from turn to turn."""

from services.gateway.domain.dialects.base import Json, objects
from services.gateway.domain.upstream_body import THOUGHTS

FIELD = THOUGHTS[0]
_SEAL = "reef:"  # never empty: without a signature some clients make a text of thoughts


def sealed(thoughts: str) -> str:
    """Return thoughts in the form that a client keeps and does not show."""
    return _SEAL + thoughts


def opened(seal: object) -> str:
    """Return sealed thoughts; none if another maker has sealed them."""
    return seal.removeprefix(_SEAL) if isinstance(seal, str) and seal.startswith(_SEAL) else ""


def thoughts_in(item: Json) -> str:
    """Return the thoughts of a reasoning item: its own, sealed ones, or their summary."""
    own, summary = _text(item.get("content")), _text(item.get("summary"))
    return own or opened(item.get("encrypted_content")) or summary


def thoughts_of(block: Json) -> str:
    """Return the thoughts of a thinking block, which may be sealed."""
    shown = block.get("thinking")
    return shown if isinstance(shown, str) and shown else opened(block.get("signature"))


def _text(value: object) -> str:
    # Parts that cannot be read are left out: a client sends them again with every later turn.
    texts = [part.get("text") for part in objects(value)]
    return value if isinstance(value, str) else "\n".join(t for t in texts if isinstance(t, str))
