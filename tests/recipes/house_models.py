"""Scripted models of the house style: one that obeys its rules, and proposers that read complaints."""

import json
import random
import re
from collections import Counter

from recipes.reflection.examples import house

ASKED = {"price": "State its price", "date": "State the date", "name": "State the name"}
OBEYED = {"price": "in cents", "date": "year-month-day", "name": "family name first"}


def house_model(messages, seed=0, *, obeys=1.0) -> str:
    """Knows nothing of the house, and obeys a rule that its prompt states with this probability."""
    prompt, told = messages[-1]["content"], str(messages[0]["content"])
    kind = next(kind for kind, word in ASKED.items() if word in prompt)
    luck = random.Random(f"{seed} {prompt}").random()
    return wanted(kind, prompt) if OBEYED[kind] in told and luck < obeys else "I cannot say."


def wanted(kind, prompt) -> str:
    if kind == "name":
        given, family = prompt.split()[:2]
        return f"{family.upper()}, {given}"
    number = int(re.search(r"\d+", prompt)[0])
    return f"{number}50" if kind == "price" else f"2026-05-{number:02d}"


def complaints(text: str) -> list[str]:
    """The words of the house in a text, the most frequent first."""
    count = Counter(
        {words: len(re.findall(re.escape(words), text)) for words in house.WORDS.values()}
    )
    return [words for words, n in count.most_common() if n]


def answer(**fields) -> str:
    return json.dumps(fields)


def rule(**fields) -> str:
    return answer(
        **{"op": "create", "id": "new", "kind": "rules", "config": {"text": "New."}, **fields}
    )


def editor(messages, _seed):
    """Writes the most frequent complaint that no entry states yet as a rule."""
    shown = messages[-1]["content"]
    entries = "".join(re.findall(r"<entry \w+>\n(.*?)\n</entry", shown, re.DOTALL))
    new = [words for words in complaints(shown) if words not in entries]
    if not new:
        return "Nothing to add."
    kind = next(kind for kind, words in house.WORDS.items() if words == new[0])
    return rule(id=f"style-{kind}", config={"text": new[0]}, reason=f"{kind}: {new[0]}")


def rewriter(messages, _seed):
    """Adds the most frequent complaint that the text does not have yet."""
    shown = messages[-1]["content"]
    text = re.search(r"<text \w+>\n(.*?)\n</text", shown, re.DOTALL)[1].strip()
    new = [words for words in complaints(shown) if words not in text]
    return "```\n" + "\n".join(filter(None, [text, *new[:1]])) + "\n```"


def library(messages, _seed):
    """Summaries keep complaints; an unscored session is judged by them; each group makes a skill."""
    system, shown = messages[0]["content"], messages[-1]["content"]
    said = complaints(shown)
    if system.startswith("Summarise"):
        return " ".join(said) or "All went well."
    if system.startswith("Judge"):
        good = 0.0 if said else 1.0
        return json.dumps(
            dict.fromkeys(("task_completion", "response_quality", "tool_usage", "efficiency"), good)
        )
    if "<entry" in shown or not said:
        return '{"action": "skip"}'
    kind = next(kind for kind, words in house.WORDS.items() if words == said[0])
    return json.dumps(
        {
            "action": "create",
            "name": f"state-{kind}",
            "description": f"To state a {kind}.",
            "text": said[0],
        }
    )


def reviewer(messages, _seed):
    """Blames bullets that speak of luck, praises those that were obeyed, and keeps complaints."""
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
