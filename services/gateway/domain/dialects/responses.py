"""OpenAI's Responses: `/v1/responses`."""

# https://platform.openai.com/docs/api-reference/responses and .../responses-streaming
#
# instructions, input -> messages     function_call -> tool_calls     function_call_output -> `tool`
# reasoning -> reasoning of the answer that it is beside

from typing import Any

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
from services.gateway.domain.dialects.custom_tools import INPUT, function_of
from services.gateway.domain.dialects.growing import calls_of, reason_of, said
from services.gateway.domain.dialects.response_items import (
    BETWEEN,
    call_item,
    cut_of,
    message_item,
    reasoning_item,
    response,
    spread,
)
from services.gateway.domain.dialects.thoughts import FIELD, thoughts_in
from services.gateway.domain.dialects.turns import answered, append, go_on, joined
from services.gateway.domain.errors import invalid

_SAME = ("model", "temperature", "top_p", "parallel_tool_calls", "user", "safety_identifier")
_PLAIN = {name: name for name in _SAME} | {"max_output_tokens": "max_tokens"}
_TEXTS = ("input_text", "output_text", "text")
_HERE = ("function", "custom", "namespace")  # other tools run at the vendor's


class Responses(Dialect):
    api = "responses"

    def chat(self, body: Json, spelling: Spelling, /) -> Json:
        """Return the chat request. Raises ApiError."""
        for name in ("background", "conversation", "prompt"):
            if body.get(name):
                raise unsupported(name, "is not supported here")
        chat = {**copied(body, _PLAIN), "messages": messages_of(body, spelling)}
        if tools := body.get("tools"):
            given = list(enumerate(listed(tools, "tools")))
            # A tool of the vendor's servers cannot run here: a client that has others does without.
            own = [(number, tool) for number, tool in given if tool.get("type") in _HERE]
            chat["tools"] = [
                _tool({**tool, "name": name}, f"tools[{number}]")
                for number, outer in own or given
                for name, _, tool in spread(outer, f"tools[{number}]")
            ]
        if (choice := body.get("tool_choice")) is not None:
            chat["tool_choice"] = _choice(choice)
        if (form := _format(body.get("text"))) is not None:
            chat["response_format"] = form
        return quiet(chat)

    def answer(self, turn: Turn, chat: Json, /) -> Json:
        """Return a response."""
        choice = chat["choices"][0]
        text, thought = said(choice["message"])
        calls = calls_of(turn, choice["message"])
        cut = cut_of(reason_of(choice, calls)[0])
        output = [reasoning_item(turn, thought, cut=cut)] if thought else []
        if text or not calls:
            output.append(message_item(turn, text, cut=cut))
        output += [call_item(turn, call, cut=cut) for call in calls]
        return response(turn, output, chat.get("usage"), cut=cut)

    def error(self, _status: int, error: Json, /) -> Json:
        """Return an error of this API: that of a chat."""
        return {"error": error}


def messages_of(body: Json, spelling: Spelling) -> list[Json]:
    """Return the messages of a request without those of an earlier response. Raises ApiError."""
    messages: list[Json] = []
    if instructions := body.get("instructions"):
        text = texts_of(instructions, "instructions", _TEXTS)
        messages.append({"role": "system", "content": text})
    given = body.get("input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    for index, item in enumerate(listed(given, "input")):
        _add(messages, item, f"input[{index}]", spelling)
    # Instructions end with their response; one that is not stored is not gone on from.
    apart = 1 if instructions and body.get("store") is not False else 0
    messages = answered(_begun([*map(joined, messages)], apart))
    if not messages:
        raise invalid("input", "'input' must be a string, or a non-empty list of items.")
    return messages


def _begun(messages: list[Json], at: int) -> list[Json]:
    # Many templates take a single system message: those of an agent's beginning are joined.
    end = at
    while end < len(messages) and messages[end]["role"] == "system":
        end += 1
    if end - at < 2:
        return messages
    text = "\n\n".join(message["content"] for message in messages[at:end])
    return [*messages[:at], {"role": "system", "content": text}, *messages[end:]]


def continued(record: Json, messages: list[Json]) -> list[Json]:
    """Return the messages that go on after a record. Its instructions are not carried over."""
    before = list(record["request"].get("messages") or ())
    if before and before[0].get("role") == "system":
        before = before[1:]
    said = [choice.get("message") for choice in (record.get("response") or {}).get("choices") or ()]
    answers = [message for message in said[:1] if isinstance(message, dict)]
    system = messages[:1] if messages[0]["role"] == "system" else []
    return [*system, *before, *answered([*answers, *messages[len(system) :]])]


def _add(messages: list[Json], item: Json, param: str, spelling: Spelling) -> None:
    match item.get("type", "message"):
        case "message":
            said, last = _said(item, param), messages[-1] if messages else {}
            # A text after the thoughts or the calls of a turn is its text too.
            begun = last.get("tool_calls") or (FIELD in last and not last["content"])
            if said["role"] == "assistant" and begun:
                go_on(last, "content", said["content"])
            elif said["role"] == "system" and last.get("role", "system") != "system":
                append(messages, said)
            else:
                messages.append(said)
        case "function_call" | "custom_tool_call":
            # The calls of a turn are one message, and so is its text before them.
            answer = _answer(messages)
            answer.setdefault("tool_calls", []).append(_call(item, param, spelling))
            answer["content"] = answer["content"] or None
        case "function_call_output" | "custom_tool_call_output":
            parts = item.get("output")
            shown = [part for part in objects(parts) if part.get("type") == "input_image"]
            rest = [part for part in objects(parts) if part.get("type") != "input_image"]
            text = texts_of(rest if shown else parts, f"{param}.output", _TEXTS)
            call_id = text_field(item, "call_id", param)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
            if shown:  # a tool's message holds text alone: its pictures are shown beside it
                pictures = [_part(part, param) for part in shown]
                messages.append({"role": "user", "content": pictures})
        case "reasoning":
            if thoughts := thoughts_in(item):
                go_on(_answer(messages), FIELD, thoughts)
        case other:
            raise unsupported(param, f"is an item {str(other)[:40]!r}, which is not supported here")


def _answer(messages: list[Json]) -> Json:
    """Return the answer that the messages end with, or a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    return messages[-1]


def _call(item: Json, param: str, spelling: Spelling) -> Json:
    name, call_id = text_field(item, "name", param), text_field(item, "call_id", param)
    if item.get("namespace") is not None:
        name = f"{text_field(item, 'namespace', param)}{BETWEEN}{name}"
    if item["type"] == "custom_tool_call":
        arguments = spelling.of(call_id, {INPUT: text_field(item, INPUT, param)})
    else:
        arguments = text_field(item, "arguments", param)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _said(item: Json, param: str) -> Json:
    role = item.get("role")
    if role not in ("user", "assistant", "system", "developer"):
        words = "must be user, assistant, system or developer"
        raise invalid(f"{param}.role", f"'{param}.role' {words}.")
    role, content = "system" if role == "developer" else role, item.get("content")
    if isinstance(content, str):
        return {"role": role, "content": content}
    parts = listed(content, f"{param}.content")
    if role == "user" and any(part.get("type") == "input_image" for part in parts):
        return {"role": role, "content": [_part(part, param) for part in parts]}
    parts = [
        {"type": "text", "text": part.get("refusal")} if part.get("type") == "refusal" else part
        for part in parts
    ]
    return {"role": role, "content": texts_of(parts, f"{param}.content", _TEXTS)}


def _part(part: Json, param: str) -> Json:
    if part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    return {"type": "text", "text": texts_of([part], f"{param}.content", _TEXTS)}


def _tool(tool: Json, param: str) -> Json:
    if tool.get("type") == "custom":
        tool = function_of(tool)
    if tool.get("type") != "function":
        words = f"is a tool of the vendor's servers ({str(tool.get('type'))[:40]}); send functions"
        raise unsupported(param, words)
    if not tool["name"]:  # perhaps a tool in the shape of a chat's
        raise invalid(f"{param}.name", f"'{param}.name' must be a name, beside 'type'.")
    names = {"description": "description", "parameters": "parameters", "strict": "strict"}
    function = {"name": text_field(tool, "name", param), **copied(tool, names)}
    return {"type": "function", "function": function}


def _choice(choice: object) -> Any:
    if isinstance(choice, str):
        return choice
    if isinstance(choice, dict) and choice.get("type") in ("function", "custom"):
        name = text_field(choice, "name", "tool_choice")
        return {"type": "function", "function": {"name": name}}
    raise invalid("tool_choice", "'tool_choice' must be auto, none, required or a function.")


def _format(text: object) -> Json | None:
    form = text.get("format") if isinstance(text, dict) else None
    if not isinstance(form, dict) or form.get("type") == "text":
        return None
    if form.get("type") == "json_schema":
        schema = copied(form, {n: n for n in ("name", "schema", "strict", "description")})
        return {"type": "json_schema", "json_schema": schema}
    return {"type": form.get("type")}
