"""Failing prompts that become tasks. Pure."""

from typing import Any

from pydantic import TypeAdapter

from reefcommon.evaluator import Task, as_task
from reefcommon.events import SampleReady, Value
from reefcommon.ids import digest

MAX_PROMPT_BYTES = 20_000
_MESSAGES: TypeAdapter[tuple[dict[str, Any], ...]] = TypeAdapter(tuple[dict[str, Any], ...])


class PromotedTask(Value):
    """A prompt whose answer was scored low. The verifier gets all fields but `answer`."""

    id: str
    messages: tuple[dict[str, Any], ...]
    answer: str
    score: float
    words: str = ""
    client: str = ""

    @property
    def task(self) -> Task:
        given = self.model_dump(exclude={"answer", "client"}) | {"promoted": True}
        return as_task(given, 0)


def promoted(event: SampleReady, max_score: float) -> PromotedTask | None:
    """Return the task of a sample; None if it did not fail, or needs more than a prompt."""
    if event.score is None or event.score > max_score or event.tools:
        return None
    last = max(
        (n for n, one in enumerate(event.messages) if one.get("role") == "assistant"), default=0
    )
    prompt, answer = event.messages[:last], event.messages[last].get("content") if last else None
    if not prompt or prompt[-1].get("role") != "user" or not isinstance(answer, str):
        return None
    encoded = _MESSAGES.dump_json(prompt)
    if len(encoded) > MAX_PROMPT_BYTES:
        return None
    words = event.feedback if isinstance(event.feedback, str) else ""
    return PromotedTask(
        id=f"promoted-{digest('promoted', encoded.decode(), length=12)}",
        messages=prompt,
        answer=answer,
        score=event.score,
        words=words[:500],
        client=event.tags.get("client", ""),
    )
