"""A serving node whose answers follow a script, and whose tokens are the bytes of a template.

So a prompt begins with the tokens of the turn before it if, and only if, the messages come back as
they were written: what sessions are joined by.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from .stub_engine import StubEngine, sse

Message = dict[str, Any]
THOUGHTS = {"reasoning", "reasoning_content"}
Script = Callable[[dict[str, Any]], Message]


def call(number: int, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def said(message: Message, thoughts: str) -> str:
    """Return the text that a template makes of an assistant's message."""
    calls = message.get("tool_calls") or ()
    texts = [f"<{c['function']['name']}>{c['function']['arguments']}" for c in calls]
    thought = f"<think>{message[thoughts]}</think>" if message.get(thoughts) else ""
    return "".join((thought, text_of(message.get("content")), *texts, "<end>"))


def text_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content)
    return content or ""


def rendered(messages: Sequence[Message], thoughts: str) -> str:
    parts = [f"[{message['role']}]{said(message, thoughts)}" for message in messages]
    return "".join((*parts, "[assistant]"))


class ScriptedEngine(StubEngine):
    """`thoughts`: the field of a message that this node writes thoughts in, and reads them from."""

    def __init__(self, script: Script, thoughts: str = "reasoning") -> None:
        super().__init__()
        self.script, self.thoughts = script, thoughts

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        message = self.script(body)
        prompt = list(rendered(body["messages"], self.thoughts).encode())
        sampled = list(said(message, self.thoughts).encode())
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(sampled),
            "total_tokens": len(prompt) + len(sampled),
        }
        head = {"id": "c-1", "created": 1700000000, "model": body["model"], "usage": usage}
        shown = [
            {"token": "x", "logprob": -0.5, "bytes": None, "top_logprobs": []} for _ in sampled
        ]
        ids = {"token_ids": sampled, "logprobs": {"content": shown}}
        if body.get("stream"):
            frames = streamed(message, head, prompt, ids, reason)
            return StreamingResponse(frames, media_type="text/event-stream")
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
        kept = {"object": "chat.completion", "prompt_token_ids": prompt}
        return JSONResponse({**head, **kept, "choices": [{**choice, **ids}]})


def streamed(
    message: Message, head: dict[str, Any], prompt: list[int], ids: dict[str, Any], reason: str
) -> Iterator[bytes]:
    """Frames of a stream. Its tool calls come in pieces, in turns."""
    usage, head = head.pop("usage"), {**head, "object": "chat.completion.chunk"}
    deltas: list[Message] = [{"role": "assistant", "content": ""}]
    text, calls = text_of(message.get("content")), message.get("tool_calls") or []
    for name in THOUGHTS & message.keys():
        deltas += [{name: message[name][at : at + 5]} for at in range(0, len(message[name]), 5)]
    deltas += [{"content": text[at : at + 7]} for at in range(0, len(text), 7)]
    for index, made in enumerate(calls):
        begun = {**made, "index": index, "function": {**made["function"], "arguments": ""}}
        deltas.append({"tool_calls": [begun]})
    for at in range(0, max((len(c["function"]["arguments"]) for c in calls), default=0), 5):
        for index, made in enumerate(calls):
            if piece := made["function"]["arguments"][at : at + 5]:
                deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    for number, delta in enumerate(deltas):
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": None}
        first = {"prompt_token_ids": prompt} if number == 0 else {}
        yield sse({**head, **first, "choices": [choice]})
    last = {"index": 0, "delta": {}, "finish_reason": reason, **ids}
    yield sse({**head, "choices": [last]})
    yield sse({**head, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def agent_script(body: dict[str, Any]) -> Message:
    """Answer as a model that first calls two tools at once, and then says that it is done."""
    after = [m["role"] for m in body["messages"]][::-1]
    tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()}
    commands = {
        "Bash": "command",
        "exec_command": "cmd",
        "shell_command": "command",
        "bash": "command",
    }
    found = next(((name, key) for name, key in commands.items() if name in tools), None)
    if found is None or "tool" in after[: after.index("user")]:
        return {"content": "All done: both files are there."}
    name, key = found
    # Spaced as no serialiser does it: the model's own text is what has to come back.
    texts = [
        f'{{"{key}":  {json.dumps(f"echo {n} > file-{n}.txt; cat file-{n}.txt")} }}' for n in (1, 2)
    ]
    return {
        "content": "Let me write both.",
        "tool_calls": [call(len(after) * 10 + n, name, text) for n, text in enumerate(texts)],
    }
