"""Turns as the experience service hands them on, and a judge that says what a test wants."""

from collections.abc import Callable, Mapping
from typing import Any

from reefcommon.events import TurnFollowed
from reefcommon.recipe_context import ModelFailed, Reply
from tests.recipes.samples import AT


def turn(number: int = 0, **changes: Any) -> TurnFollowed:
    """A greeting without Hello, and a complaint."""
    fields: dict[str, Any] = {
        "event_id": f"unt-{number}",
        "at": AT,
        "scenario": "default",
        "record_ids": (f"rec-{number}",),
        "load_id": "run:5",
        "tokens": (1, 2, 3, 4, 5),
        "prompt_length": 2,
        "loss_mask": (1, 1, 1),
        "logprobs": (-0.5, -0.25, -1.0),
        "recorded_at": AT,
        "messages": (
            {"role": "user", "content": "I am Ada."},
            {"role": "assistant", "content": "Ahoy"},
        ),
        "next_messages": ({"role": "user", "content": "Please greet me with Hello first."},),
    }
    return TurnFollowed(**(fields | changes))


class Judge:
    """Answers by `say(purpose, number of the vote)`: a text, a reply, or an error that it raises."""

    def __init__(self, say: Callable[[str, int], str | Reply | Exception]) -> None:
        self.say = say
        self.asked: list[tuple[str, Any, Mapping[str, Any]]] = []

    async def chat(self, messages: Any, *, purpose: str, n: int = 1, **params: Any) -> list[Reply]:
        number = sum(each == purpose for each, *_ in self.asked)
        self.asked.append((purpose, messages, params))
        said = self.say(purpose, number)
        if isinstance(said, Exception):
            raise said
        return [said if isinstance(said, Reply) else Reply(said)] * n


class Context:
    def __init__(self, judge: Judge) -> None:
        self.models = {"judge": judge}


AWAY = ModelFailed("the judge is away")
HINT = r"\boxed{1} [HINT_START]Greet the user with Hello first.[HINT_END]"
NO_HINT = r"\boxed{-1}"
