"""A scripted model: it does what a skill or a rule in its request says, and knows no more."""

# propose          of what most users said, a skill for labels: the proposer of harness_evolve
# label an order   with the skill in the request: read it, write the file that it names, say so.
#                  Without it, or if the skill says so: only words about a label.
# anything else    a short answer; with a greeting if a rule asks for it.

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_ORDER = re.compile(r"Order: (\d+) boxes to (\w+)")
_SKILL = re.compile(r"<location>(\S+/shipping-labels/SKILL\.md)</location>")
_WORDS = re.compile(r"<words (\w+)>\n(.*?)\n</words \1>", re.DOTALL)
SKILL = "shipping-labels"
_FILE = re.compile(r"to the file (\w+\.txt)")
_ANSWERS = {"capital": "Paris.", "week": "Seven.", "colour": "Red.", "barks": "A dog.",
            "bees": "Honey.", "two plus": "Five."}  # fmt: skip

Messages = Sequence[Mapping[str, Any]]


def reply(messages: Messages, _seed: int = 0) -> dict[str, Any]:
    """Return the model's message: `content`, or `tool_calls`."""
    if text_of(messages[0]).startswith("You look after the harness"):
        return _said(_proposal("\n".join(map(text_of, messages[1:]))))
    last = max(index for index, one in enumerate(messages) if one.get("role") == "user")
    order = _ORDER.search(text_of(messages[last]))
    if order is None:
        return _said(_answer(text_of(messages[last]), "\n".join(map(text_of, messages))))
    boxes, city = order.groups()
    label = f"{boxes} x {city.upper()}"
    results = [text_of(one) for one in messages[last + 1 :] if one.get("role") == "tool"]
    if not results:
        skill = _SKILL.search("\n".join(map(text_of, messages)))
        return _call("read", path=skill[1]) if skill else _said(_talk(label))
    if len(results) == 1 and (file := _FILE.search(results[0])):
        return _call("write", path=file[1], content=label + "\n")
    return _said(_talk(label) if len(results) == 1 else f"label.txt has {label}.")


def text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content)


def _proposal(shown: str) -> str:
    said = Counter(words for _, words in _WORDS.findall(shown)).most_common(1)
    if not said:
        return "I propose nothing."
    about = {"name": SKILL, "description": "How users want the shipping label of an order"}
    change = {
        "op": "update" if f"id: {SKILL}\n" in shown else "create",
        "id": SKILL,
        "kind": "skill",
        "config": {**about, "text": said[0][0]},
        "reason": f"{said[0][1]} users want labels in another way",
    }
    return json.dumps(change)


def _talk(label: str) -> str:
    return f"The label of this order is written: {label}."


def _answer(question: str, everything: str) -> str:
    known = (answer for word, answer in _ANSWERS.items() if word in question)
    answer = next(known, "I see.")
    return f"Hello! {answer}" if "Greet the user with Hello" in everything else answer


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _call(name: str, **arguments: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "call": (name, arguments)}
