"""Anthropic's Messages: `/v1/messages`."""

# https://docs.anthropic.com/en/api/messages and .../messages-streaming
#
# system, messages -> messages     tool_use -> tool_calls     tool_result -> role `tool`
# Thinking blocks -> reasoning. Redacted ones are dropped: only their maker can read them.

import re
from collections.abc import Iterator

from services.gateway.domain.dialects.base import (
    Dialect,
    Json,
    Spelling,
    Turn,
    copied,
    listed,
    objects,
    quiet,
    text_field,
    texts_of,
    unsupported,
)
from services.gateway.domain.dialects.growing import calls_of, reason_of, said
from services.gateway.domain.dialects.message_blocks import (
    asks_thoughts,
    head_of,
    stop_of,
    text_block,
    thinking_block,
    usage_of,
    whole_use,
)
from services.gateway.domain.dialects.thoughts import FIELD, thoughts_of
from services.gateway.domain.dialects.turns import answered, append, joined
from services.gateway.domain.errors import TOO_LONG, invalid

_SAME = ("model", "max_tokens", "temperature", "top_p", "top_k")
_PLAIN = {name: name for name in _SAME} | {"stop_sequences": "stop"}
# An agent's own line in the system text that differs from request to request.
_NOISE = re.compile(r"^x-anthropic-billing-header:")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ERRORS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"}
_ERRORS |= {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error"}
_ERRORS |= {503: "overloaded_error"}


class Messages(Dialect):
    api = "messages"

    def chat(self, body: Json, spelling: Spelling, /) -> Json:
        """Return the chat request. Raises ApiError."""
        limit = body.get("max_tokens")
        if type(limit) is not int or limit < 1:
            raise invalid("max_tokens", "'max_tokens' is needed: a positive integer.")
        return {**copied(body, _PLAIN), **conversation(body, spelling)}

    def answer(self, turn: Turn, chat: Json, /) -> Json:
        """Return a message."""
        choice = chat["choices"][0]
        text, thought = said(choice["message"])
        calls = calls_of(turn, choice["message"])
        content = [thinking_block(turn, thought)] if thought and asks_thoughts(turn) else []
        content += [text_block(text)] if text else []
        content += [whole_use(call, turn.spelling) for call in calls]
        reason, sequence = stop_of(*reason_of(choice, calls))
        return {
            **head_of(turn),
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage_of(chat.get("usage")),
        }

    def error(self, status: int, error: Json, /) -> Json:
        """Return an error of this API."""
        kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
        words = error.get("message", "")
        if error.get("code") == TOO_LONG:  # this API has no code for it: agents know its words
            words = f"prompt is too long: {words}"
        return {"type": "error", "error": {"type": kind, "message": words}}


class CountTokens(Messages):
    """The number of a request's tokens. The chat request is that of the engine's `/tokenize`."""

    def chat(self, body: Json, spelling: Spelling, /) -> Json:
        """Return the request to count. Raises ApiError."""
        return {**copied(body, {"model": "model"}), **conversation(body, spelling)}

    def answer(self, _turn: Turn, counted: Json, /) -> Json:
        """Return the count."""
        return {"input_tokens": counted.get("count", 0)}


def conversation(body: Json, spelling: Spelling) -> Json:
    """Return messages and tools of a chat request. Raises ApiError."""
    messages: list[Json] = []
    if system := _system(body.get("system")):
        messages.append({"role": "system", "content": system})
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise invalid("messages", "'messages' must be a non-empty list of message objects.")
    for index, message in enumerate(given):
        for found in _messages(message, f"messages[{index}]", spelling):
            append(messages, found)
    chat: Json = {"messages": answered([*map(joined, messages)])}
    last = chat["messages"][-1]
    if last["role"] == "assistant" and last["content"] and "tool_calls" not in last:
        # The beginning of the answer: the model goes on from its last character.
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    if tools := body.get("tools"):
        given = list(enumerate(listed(tools, "tools")))
        # A tool of the vendor's servers cannot run here: a client that has others does without.
        own = [(n, tool) for n, tool in given if tool.get("type") in (None, "custom")]
        chat["tools"] = [_tool(tool, n) for n, tool in own or given]
    if (choice := body.get("tool_choice")) is not None:
        chat |= _choice(choice)
    if (form := _format(body)) is not None:
        chat["response_format"] = {"type": "json_schema", "json_schema": form}
    return quiet(chat)


def _format(body: Json) -> Json | None:
    config = body.get("output_config")
    form = config.get("format") if isinstance(config, dict) else body.get("output_format")
    if not isinstance(form, dict):
        return None
    if form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise unsupported("output_config.format", "must be a json_schema with its schema")
    return {"name": "answer", "schema": form["schema"], "strict": True}


def _system(system: object) -> str:
    if isinstance(system, list):
        blocks = listed(system, "system")
        system = [block for block in blocks if not _NOISE.match(str(block.get("text", "")))]
    return texts_of(system, "system")


def _messages(message: object, param: str, spelling: Spelling) -> Iterator[Json]:
    role = message.get("role") if isinstance(message, dict) else None
    if not isinstance(message, dict) or role not in ("user", "assistant", "system"):
        raise invalid(f"{param}.role", f"'{param}.role' must be user, assistant or system.")
    content = message.get("content")
    if role == "system":
        yield {"role": role, "content": texts_of(content, f"{param}.content")}
        return
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    blocks = listed(content, f"{param}.content")
    if role == "assistant":
        yield _assistant(blocks, param, spelling)
        return
    # Results of tools come first in a chat: they answer the calls before them.
    results = [block for block in blocks if block.get("type") == "tool_result"]
    for block in results:
        yield {
            "role": "tool",
            "tool_call_id": text_field(block, "tool_use_id", param),
            "content": _result(block, param),
        }
    # A tool's message holds text alone: its pictures are shown beside it.
    shown = [part for block in results for part in _pictures(block)]
    rest = [block for block in (*shown, *blocks) if block.get("type") != "tool_result"]
    rest = [_part(block, param) for block in rest]
    if rest or not results:
        plain = len(rest) == 1 and rest[0]["type"] == "text"
        yield {"role": "user", "content": (rest[0]["text"] if plain else rest) or ""}


def _assistant(blocks: list[Json], param: str, spelling: Spelling) -> Json:
    texts, thoughts, calls = [], [], []
    for block in blocks:
        match block.get("type"):
            case "text":
                texts.append(text_field(block, "text", param))
            case "tool_use":
                call_id = text_field(block, "id", param)
                arguments = spelling.of(call_id, block.get("input") or {})
                function = {"name": text_field(block, "name", param), "arguments": arguments}
                calls.append({"id": call_id, "type": "function", "function": function})
            case "thinking":
                thoughts.append(thoughts_of(block))
            case "redacted_thinking":
                pass
            case other:
                raise unsupported(f"{param}.content", f"holds a block {str(other)[:40]!r}")
    message: Json = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
    more = {FIELD: "".join(thoughts), "tool_calls": calls}
    return message | {name: value for name, value in more.items() if value}


def _pictures(block: Json) -> list[Json]:
    return [part for part in objects(block.get("content")) if part.get("type") == "image"]


def _result(block: Json, param: str) -> str:
    content = block.get("content")
    if isinstance(content, list):
        parts = [part for part in listed(content, param) if part.get("type") != "image"]
        content = [_said(part, param) for part in parts]
    text = texts_of(content, f"{param}.tool_result.content")
    return f"Error: {text}".rstrip(": ") if block.get("is_error") else text


def _said(part: Json, param: str) -> Json:
    if part.get("type") in ("document", "search_result"):
        return _part(part, param)
    if part.get("type") != "tool_reference":
        return part
    return {"type": "text", "text": f"The tool {part.get('tool_name')} is loaded."}


def _part(block: Json, param: str) -> Json:
    match block.get("type"):
        case "text":
            return {"type": "text", "text": text_field(block, "text", param)}
        case "image":
            source = block.get("source")
            source = source if isinstance(source, dict) else {}
            url = source.get("url")
            if source.get("type") == "base64":
                url = f"data:{source.get('media_type')};base64,{source.get('data')}"
            if isinstance(url, str):
                return {"type": "image_url", "image_url": {"url": url}}
        case "document" | "search_result":
            return {"type": "text", "text": _document(block, f"{param}.content")}
    raise unsupported(f"{param}.content", f"holds a block {str(block.get('type'))[:40]!r}")


def _document(block: Json, param: str) -> str:
    source = block.get("source")
    if block["type"] == "search_result":  # its source is a name, and its parts are its own
        block, source = {**block, "context": source}, {**block, "type": "content"}
    source = source if isinstance(source, dict) else {}
    match source.get("type"):
        case "text":
            text = text_field(source, "data", f"{param}.source")
        case "content":
            text = texts_of(source.get("content"), f"{param}.source.content")
        case other:
            words = "send its text, as a source of type text or content"
            raise unsupported(param, f"holds a document of type {str(other)[:40]!r}: {words}")
    about = [str(block[name]) for name in ("title", "context") if block.get(name)]
    return "\n".join([*about, "<document>", text, "</document>"])


def _tool(tool: Json, index: int) -> Json:
    param = f"tools[{index}]"
    if tool.get("type") not in (None, "custom"):
        words = f"is a tool of the vendor's servers ({str(tool['type'])[:40]}); send tools of yours"
        raise unsupported(param, words)
    schema = tool.get("input_schema") or {"type": "object", "properties": {}}
    function = {"name": text_field(tool, "name", param), "parameters": schema}
    about = copied(tool, {"description": "description"})
    return {"type": "function", "function": {**function, **about}}


def _choice(choice: object) -> Json:
    given: Json = choice if isinstance(choice, dict) else {}
    kind = given.get("type")
    found: Json = {"parallel_tool_calls": False} if given.get("disable_parallel_tool_use") else {}
    if kind == "tool":
        name = text_field(given, "name", "tool_choice")
        return {**found, "tool_choice": {"type": "function", "function": {"name": name}}}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise invalid("tool_choice", "'tool_choice.type' must be auto, any, tool or none.")
    return {**found, "tool_choice": _CHOICES[kind]}
