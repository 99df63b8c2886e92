"""A request as the generation loop holds it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from services.engine.domain.outputs import Event, TokenLogprob
from services.engine.domain.sampling import SamplingParams
from services.engine.lora import Adapter

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Work:
    """One prompt of an HTTP request. `sink` gets each of its events, on the submitter's side."""

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    adapter: Adapter | None
    seed: int
    first_stream: int
    """Number of its first choice among all choices of the HTTP request."""
    sink: Callable[[Event], None]
    read: int = 0
    """Prompt tokens that are in the scratch row."""
    read_under: str = ""
    """Version of the base weights that read them."""
    scores: list[TokenLogprob] = field(default_factory=list)

    @property
    def background(self) -> bool:
        """Work that waits for users."""
        return self.params.priority > 0


Post = tuple[Callable[[Event], None], Event]
"""An event with the sink it goes to."""


@dataclass(slots=True)
class Counters:
    """Totals since start."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    finished: int = 0
    aborted: int = 0
