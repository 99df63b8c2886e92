"""Samples as the experience service hands them on, with what a test wants to vary."""

from datetime import UTC, datetime
from typing import Any

from reefcommon.events import SampleReady

AT = datetime(2026, 1, 1, tzinfo=UTC)


def sample(number: int = 0, **changes: Any) -> SampleReady:
    """Two prompt tokens, three response tokens, score 1, load `run:5`."""
    fields: dict[str, Any] = {
        "event_id": f"smp-{number}",
        "at": AT,
        "scenario": "default",
        "record_ids": (f"rec-{number}",),
        "load_id": "run:5",
        "score": 1.0,
        "tokens": (1, 2, 3, 4, 5),
        "prompt_length": 2,
        "loss_mask": (1, 1, 1),
        "logprobs": (-0.5, -0.25, -1.0),
        "recorded_at": AT,
    }
    return SampleReady(**(fields | changes))
