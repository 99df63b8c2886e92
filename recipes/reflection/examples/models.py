"""Scripted models of the house style: one obeys its rules, and proposers read complaints."""

# A small model neither follows such rules nor writes them: these stand for the served model and for
# the proposer of each harness recipe, and know no more than their prompts say.

import json
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from recipes.reflection.examples import house
from recipes.skill_evolution.recipe import WEIGHTS

Messages = Sequence[Mapping[str, Any]]

ASKED = {"price": "State its price", "date": "State the date", "name": "State the name"}
OBEYED = {"price": "in cents", "date": "year-month-day", "name": "family name first"}


def house_model(messages: Messages, seed: int = 0, *, obeys: float = 1.0) -> str:
    """Answer a question of the house; a rule in the prompt is obeyed with this probability."""
    prompt, told = messages[-1]["content"], str(messages[0]["content"])
    kind = next((kind for kind, word in ASKED.items() if word in prompt), None)
    luck = random.Random(f"{seed} {prompt}").random()
    if kind is None or OBEYED[kind] not in told or luck >= obeys:
        return "I cannot say."
    return wanted(kind, prompt)


def wanted(kind: str, prompt: str) -> str:
    """Return the answer in the style of the house."""
    if kind == "name":
        given, family = prompt.split()[:2]
        return f"{family.upper()}, {given}"
    number = int(re.findall(r"\d+", prompt)[0])
    return f"{number}50" if kind == "price" else f"2026-05-{number:02d}"


def complaints(text: str) -> list[str]:
    """Return the words of the house in a text, the most frequent first."""
    count = Counter(
        {words: len(re.findall(re.escape(words), text)) for words in house.WORDS.values()}
    )
    return [words for words, n in count.most_common() if n]


def rule(**fields: Any) -> str:
    given = {"op": "create", "id": "new", "kind": "rules", "config": {"text": "New."}}
    return json.dumps({**given, **fields})


def editor(messages: Messages, _seed: int = 0) -> str:
    """Write the most frequent complaint that no entry states yet as a rule."""
    shown = messages[-1]["content"]
    entries = "".join(re.findall(r"<entry \w+>\n(.*?)\n</entry", shown, re.DOTALL))
    new = [words for words in complaints(shown) if words not in entries]
    if not new:
        return "Nothing to add."
    kind = next(kind for kind, words in house.WORDS.items() if words == new[0])
    return rule(id=f"style-{kind}", config={"text": new[0]}, reason=f"{kind}: {new[0]}")


def rewriter(messages: Messages, _seed: int = 0) -> str:
    """Add the most frequent complaint that the text does not have yet."""
    shown = messages[-1]["content"]
    text = re.findall(r"<text \w+>\n(.*?)\n</text", shown, re.DOTALL)[0].strip()
    new = [words for words in complaints(shown) if words not in text]
    return "```\n" + "\n".join(filter(None, [text, *new[:1]])) + "\n```"


def library(messages: Messages, _seed: int = 0) -> str:
    """Keep complaints in summaries, judge sessions by them, and make a skill of a group's."""
    system, shown = messages[0]["content"], messages[-1]["content"]
    said = complaints(shown)
    if system.startswith("Summarise"):
        return " ".join(said) or "All went well."
    if system.startswith("Judge"):
        good = 0.0 if said else 1.0
        return json.dumps(dict.fromkeys(WEIGHTS, good))
    if "<entry" in shown or not said:
        return '{"action": "skip"}'
    kind = next(kind for kind, words in house.WORDS.items() if words == said[0])
    about = {"name": f"state-{kind}", "description": f"To state a {kind}."}
    return json.dumps({"action": "create", "text": said[0], **about})


def reviewer(messages: Messages, _seed: int = 0) -> str:
    """Blame bullets that speak of luck, praise those that were obeyed, and keep complaints."""
    system, shown = messages[0]["content"], messages[-1]["content"]
    book = dict(re.findall(r"<bullet \w+>\n([\w-]+): (.*?)\n</bullet", shown))
    if system.startswith("You review"):
        said = complaints("".join(re.findall(r"<words \w+>\n(.*?)\n</words", shown, re.DOTALL)))
        right = "<score" in shown and "\n1\n" in shown
        helpful = [
            name for name, text in book.items() if right and any(o in text for o in OBEYED.values())
        ]
        harmful = [name for name, text in book.items() if "luck" in text]
        return json.dumps(
            {"insight": said[0] if said else "", "helpful": helpful, "harmful": harmful}
        )
    insights = complaints("".join(re.findall(r"<insight \w+>\n(.*?)\n</insight", shown)))
    return json.dumps({"add": [words for words in insights if words not in book.values()]})


_PROPOSERS = {
    "You look after the harness": editor,
    "A model does tasks": rewriter,
    "You look after the skills": library,
    "Summarise a session": library,
    "Judge a session": library,
    "You review an exchange": reviewer,
    "You keep the playbook": reviewer,
}


def either(messages: Messages, seed: int = 0) -> str:
    """Answer as the proposer that the first message asks for, else as the served model."""
    told = str(messages[0]["content"])
    found = (model for start, model in _PROPOSERS.items() if told.startswith(start))
    return next(found, house_model)(messages, seed)
