"""A question of a harness recipe to its proposer, and experience as the question shows it."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from recipes.distillation.messages import without_thoughts
from recipes.feedback_rules.recipe import words_of
from recipes.openclaw_rl.judge import text_of
from reefcommon.errors import Unavailable
from reefcommon.events import Unit
from reefcommon.harness.tree import Entry
from reefcommon.harness.untrusted import Part, untrusted_text
from reefcommon.recipe import Knobs
from reefcommon.recipe_context import Context, ModelFailed

PROPOSER, SERVED = "proposer", "served"


class ProposerKnobs(Knobs):
    """Knobs of a recipe that asks a model for changes of the harness."""

    proposer: str = ""
    """the model of `models:` that is asked; absent: `proposer` if there is one, else `served`"""
    proposer_max_tokens: int = Field(2048, ge=16, description="tokens of its answers at most")
    shown_chars: int = Field(4000, ge=200)
    """characters of each text of experience that it is shown at most"""


async def ask(
    ctx: Context,
    knobs: ProposerKnobs,
    task: str,
    shown: Sequence[Part],
    *,
    purpose: str,
    temperature: float | None = None,
) -> str:
    """Return the proposer's answer; "" if it refuses the question.

    Raises as `Model.chat` if it is away or its budget is used up.
    """
    name = knobs.proposer or (PROPOSER if PROPOSER in ctx.models else SERVED)
    messages = [
        {"role": "system", "content": task},
        {"role": "user", "content": untrusted_text(shown)},
    ]
    params: dict[str, Any] = {"max_tokens": knobs.proposer_max_tokens}
    if temperature is not None:
        params["temperature"] = temperature
    try:
        (reply,) = await ctx.models[name].chat(messages, purpose=purpose, **params)
    except ModelFailed as error:
        if isinstance(error, Unavailable):
            raise
        return ""
    said = without_thoughts(reply.text)
    # A thought that was cut off holds drafts, and no answer.
    return "" if said.startswith("<think>") else said


def request_of(unit: Unit) -> tuple[Mapping[str, Any], ...]:
    """Return the messages of a unit without its last answer."""
    messages = unit.messages
    answered = bool(messages) and messages[-1].get("role") == "assistant"
    return messages[:-1] if answered else messages


def answer_of(unit: Unit) -> str:
    last: Mapping[str, Any] = unit.messages[-1] if unit.messages else {}
    return text_of(last) if last.get("role") == "assistant" else ""


def exchange(unit: Unit, limit: int) -> list[Part]:
    """Return request, answer, score and words of a unit."""
    asked = "\n\n".join(f"{m.get('role')}: {text_of(m)}" for m in request_of(unit))
    parts = [("request", short(asked, limit)), ("answer", short(answer_of(unit), limit))]
    if unit.reward is not None:
        parts.append(("score", f"{unit.reward:g}"))
    if words := words_of(unit) or (unit.signal.words if unit.signal else ""):
        parts.append(("words", short(words, limit)))
    return parts


def entry_part(entry: Entry) -> Part:
    fields = "\n".join(f"{name}: {value}" for name, value in entry.config.items())
    off = " (disabled)" if entry.disabled else ""
    return "entry", f"id: {entry.id}\nkind: {entry.kind}{off}\n{fields}"


def short(text: str, limit: int) -> str:
    """Return a text with its middle left out, if it is longer than `limit`."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… ({len(text) - 2 * half} characters left out) …\n{text[-half:]}"
