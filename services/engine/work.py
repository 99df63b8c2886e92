"""A request as the generation loop holds it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from services.engine.domain.outputs import Event, TokenLogprob
from services.engine.domain.sampling import SamplingParams
from services.engine.lora import Adapter


@dataclass(slots=True, eq=False)
class Work:
    """`sink` is called on the side that submitted it, once per event."""

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    adapter: Adapter | None
    seed: int
    sink: Callable[[Event], None]
    read: int = 0
    """Prompt tokens that are in the scratch row."""
    read_under: str = ""
    """Version of the base weights that they were read by."""
    scores: list[TokenLogprob] = field(default_factory=list)

    @property
    def unread(self) -> int:
        """Prompt tokens still to be read."""
        return len(self.prompt_ids) - self.read


Post = tuple[Callable[[Event], None], Event]
"""An event with the sink it goes to."""
