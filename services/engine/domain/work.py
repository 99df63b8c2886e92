"""A request as the generation loop holds it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from services.engine.domain.outputs import Event, TokenLogprob
from services.engine.domain.sampling import SamplingParams

if TYPE_CHECKING:
    from services.engine.lora import Adapter

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Work:
    """A prompt of an HTTP request. `sink` gets its events, on the submitter's side."""

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    adapter: "Adapter | None"
    seed: int
    # Number of its first choice among all choices of the HTTP request.
    first_stream: int
    sink: Callable[[Event], None]
    # Prompt tokens that are in the scratch row.
    read: int = 0
    # Version of the base weights that read them.
    read_under: str = ""
    scores: list[TokenLogprob] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens of the prompt and of a whole answer."""
        return len(self.prompt_ids) + self.params.max_tokens

    @property
    def background(self) -> bool:
        """True if it waits for users."""
        return self.params.priority > 0

    def version(self, base_version: str) -> str:
        """The version of its tokens: the adapter's name, or the base weights' version."""
        # Both, if the base weights below the adapter were replaced after it was loaded: these
        # tokens are those of neither release.
        if self.adapter is None:
            return base_version
        if base_version == self.adapter.base_version:
            return self.adapter.name
        return f"{self.adapter.name}+{base_version}"


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
