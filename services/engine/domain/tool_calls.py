"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>` in a text becomes tool calls."""

import json
from dataclasses import dataclass, field

from pydantic_core import from_json

from services.engine.domain.stops import overlap

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call; `arguments` is JSON text, as in OpenAI's API."""

    index: int
    name: str
    arguments: str


@dataclass(slots=True)
class ToolCallParser:
    """Splits text into content and calls, however the text is cut.

    An invalid block stays in the content. White space around calls belongs to neither.
    """

    _text: str = field(default="", init=False)
    _inside: bool = field(default=False, init=False)
    _after_call: bool = field(default=False, init=False)
    # Calls found so far.
    count: int = field(default=0, init=False)

    def push(self, piece: str) -> tuple[str, list[ToolCall]]:
        """Content and calls that are certain now."""
        self._text += piece
        content = ""
        calls: list[ToolCall] = []
        while True:
            if self._inside:
                end = self._text.find(CLOSE)
                if end < 0:
                    return content, calls
                block = self._take_block(end)
                if isinstance(block, ToolCall):
                    calls.append(block)
                else:
                    content += block
                continue
            start = self._text.find(OPEN)
            if start < 0:
                return content + self._content(self._take_plain()), calls
            content += self._content(self._text[:start].rstrip())
            self._text = self._text[start:]
            self._inside = True

    def flush(self) -> tuple[str, list[ToolCall]]:
        """The rest. An unclosed block counts if it is a whole call."""
        rest, self._text = self._text, ""
        if self._inside:
            self._inside = False
            call = self._call(rest.removeprefix(OPEN))
            return ("", [call]) if call else (rest, [])
        return self._content(rest), []

    def _content(self, text: str) -> str:
        if self._after_call:
            text = text.lstrip()
            self._after_call = not text
        return text

    def _take_block(self, end: int) -> ToolCall | str:
        block, self._text = self._text[: end + len(CLOSE)], self._text[end + len(CLOSE) :]
        self._inside = False
        return self._call(block[len(OPEN) : end]) or block

    def _take_plain(self) -> str:
        ready = self._text[: len(self._text) - overlap(self._text, OPEN)].rstrip()
        self._text = self._text[len(ready) :]
        return ready

    def _call(self, body: str) -> ToolCall | None:
        try:
            value = from_json(body, allow_inf_nan=False)  # refuses half a surrogate pair too
        except ValueError:
            return None
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        arguments = value.get("arguments", {})
        if not isinstance(arguments, dict):
            return None
        self.count += 1
        self._after_call = True
        return ToolCall(self.count - 1, value["name"], json.dumps(arguments, ensure_ascii=False))
