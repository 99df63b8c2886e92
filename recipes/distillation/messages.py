"""The messages of a unit's prompt, and the prompt of a teacher that sees a demonstration. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from reefcommon.conversation import flat_text, role_of
from reefcommon.events import Unit

Messages = tuple[dict[str, Any], ...]

_THOUGHTS = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
_OPEN_THOUGHT = re.compile(r"^.*?</think>\s*", re.DOTALL)


def prompt_messages(unit: Unit) -> Messages:
    """Return the messages before the first answer that the unit trains on."""
    # The messages of a unit are its last request and the answer to it. One answer a record is the
    # policy's own: earlier answers of the conversation belong to the prompt.
    answers = [i for i, message in enumerate(unit.messages) if role_of(message) == "assistant"]
    if not answers:
        return unit.messages
    own = min(max(len(unit.record_ids), 1), len(answers))
    return unit.messages[: answers[-own]]


def answer_text(unit: Unit) -> str:
    """Return the text of the unit's last answer without thoughts; empty if there is none."""
    if not unit.messages or role_of(unit.messages[-1]) != "assistant":
        return ""
    return without_thoughts(flat_text(unit.messages[-1].get("content")))


def demonstration_in(unit: Unit) -> str | None:
    """Return the `demonstration` of a report's metadata or feedback, if it is a text."""
    said = unit.feedback if isinstance(unit.feedback, Mapping) else {}
    text = unit.metadata.get("demonstration", said.get("demonstration"))
    return text if isinstance(text, str) and text else None


def words_in(unit: Unit) -> str | None:
    """Return the words of a report, for a recipe that takes them as a demonstration."""
    said = unit.feedback.get("text") if isinstance(unit.feedback, Mapping) else unit.feedback
    return said if isinstance(said, str) and said else None


def without_thoughts(text: str) -> str:
    """Return the text without `<think>` parts, also one that the template has opened."""
    return _OPEN_THOUGHT.sub("", _THOUGHTS.sub("", text), count=1).strip()


def with_demonstration(messages: Sequence[Mapping[str, Any]], text: str, template: str) -> Messages:
    """Return the messages with a demonstration in the last user message.

    `template` says how, by `{prompt}` and `{demonstration}`; a conversation without a user message
    gets one.
    """
    copied = [dict(message) for message in messages]
    users = [i for i, message in enumerate(copied) if role_of(message) == "user"]
    if not users:
        copied.append({"role": "user", "content": ""})
        users = [len(copied) - 1]
    last = copied[users[-1]]
    # Both at once: the prompt may contain the other's name.
    filled = {"{prompt}": flat_text(last.get("content")), "{demonstration}": text}
    parts = re.split(r"(\{prompt\}|\{demonstration\})", template)
    last["content"] = "".join(filled.get(part, part) for part in parts)
    return tuple(copied)
