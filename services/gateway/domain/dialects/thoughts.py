"""Thoughts of the model, as clients carry them from turn to turn."""

from services.gateway.domain.dialects.base import Json, texts_of
from services.gateway.domain.upstream_body import THOUGHTS

FIELD = THOUGHTS[0]
_SEAL = "reef:"  # never empty: without a signature some clients make a text of thoughts


def sealed(thoughts: str) -> str:
    """Return thoughts in the form that a client keeps and does not show."""
    return _SEAL + thoughts


def opened(seal: object) -> str:
    """Return sealed thoughts; none if another maker has sealed them."""
    return seal.removeprefix(_SEAL) if isinstance(seal, str) and seal.startswith(_SEAL) else ""


def thoughts_in(item: Json, param: str) -> str:
    """Return the thoughts of a reasoning item: its own, sealed ones, or their summary."""
    own = texts_of(item.get("content"), f"{param}.content", ("reasoning_text", "text"))
    summary = texts_of(item.get("summary"), f"{param}.summary", ("summary_text", "text"))
    return own or opened(item.get("encrypted_content")) or summary
