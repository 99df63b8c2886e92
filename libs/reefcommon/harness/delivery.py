"""A harness in a chat: its text in the system message, or after the last user message."""

# The adapter `chat`: an agent without files of its own. The gateway adds the text to chats of plain
# clients, the evaluator to its tasks.

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from reefcommon.harness.render import bullets, enabled
from reefcommon.harness.tree import Tree

At = Literal["system", "user_end"]
Json = Mapping[str, Any]


class Added(NamedTuple):
    """The one message that a text changed: put in at `place`, or in place of the one there."""

    place: int
    inserted: bool
    message: dict[str, Any]

    def to(self, messages: Sequence[Json]) -> list[Json]:
        """Return the messages with the change."""
        rest = self.place if self.inserted else self.place + 1
        return [*messages[: self.place], self.message, *messages[rest:]]


def render_chat(tree: Tree) -> str:
    """Return the prompt of a tree: its rules, its memory, then its skills."""
    skills = [
        f"### {entry.config['name']}\n{entry.config['description'].strip()}\n\n"
        f"{entry.config['text'].strip()}"
        for entry in enabled(tree, "skill")
    ]
    parts = {
        "## Rules": bullets(tree, "rules"),
        "## Memory": bullets(tree, "memory"),
        "## Skills": "\n\n".join(skills),
    }
    return "\n\n".join(f"{title}\n{text}" for title, text in parts.items() if text)


def added(text: str, messages: Sequence[Json], at: At) -> Added:
    """Return the change that adds a text to a chat. Without a user message it is a system text."""
    if at == "user_end":
        for index in range(len(messages) - 1, -1, -1):
            message = messages[index]
            if message.get("role") == "user":
                content = _joined(message.get("content"), text)
                return Added(index, False, {**message, "content": content})
    if not messages or messages[0].get("role") not in ("system", "developer"):
        return Added(0, True, {"role": "system", "content": text})
    first = messages[0]
    return Added(0, False, {**first, "content": _joined(text, first.get("content"))})


def episode_messages(
    tree: Tree, task_messages: Sequence[Json], *, rules_at: At = "system"
) -> list[dict[str, Any]]:
    """Return the task's messages with the prompt of the tree as system or user text."""
    # Copies: the same task is asked again under another tree.
    messages = [dict(message) for message in task_messages]
    if prompt := render_chat(tree):
        return [dict(message) for message in added(prompt, messages, rules_at).to(messages)]
    return messages


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, list) or isinstance(second, list):
        both = ([{"type": "text", "text": c}] if isinstance(c, str) else c for c in (first, second))
        return [part for content in both for part in content or ()]
    return "\n\n".join(str(text) for text in (first, second) if text)
