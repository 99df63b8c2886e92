"""The objects of an answer in Responses."""

from services.gateway.domain.dialects.base import Json, Turn, listed, text_field
from services.gateway.domain.dialects.custom_tools import input_of
from services.gateway.domain.dialects.growing import Call, said
from services.gateway.domain.dialects.legible import count_of
from services.gateway.domain.dialects.thoughts import sealed

PREFIX = "resp_"
_UNSET = """
instructions max_output_tokens max_tool_calls previous_response_id prompt_cache_key
safety_identifier
"""
_ECHOED: Json = {
    **dict.fromkeys(_UNSET.split()),
    "frequency_penalty": 0.0,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
}
# A chat's tools have no namespaces: theirs go before their names.
BETWEEN = "__"
SEALED = "reasoning.encrypted_content"
_TOOL: Json = {"description": None, "parameters": None, "strict": None}


def response(
    turn: Turn, output: list[Json], usage: object, *, cut: str = "", status: str = ""
) -> Json:
    """Return a response object."""
    asked = turn.asked
    echoed = {name: asked.get(name, default) for name, default in _ECHOED.items()}
    echoed = {n: _ECHOED[n] if value is None else value for n, value in echoed.items()}
    echoed["tools"] = [
        _TOOL | tool if tool.get("type") == "function" else tool
        for tool in asked.get("tools") or ()
    ]
    status = status or ("incomplete" if cut else "completed")
    given = asked.get("metadata")
    metadata: Json = {**given} if isinstance(given, dict) else {}
    if turn.receipt and status in ("completed", "incomplete"):
        metadata["reef_agent_record_id"] = turn.receipt
    return {
        **echoed,
        "id": f"{PREFIX}{turn.receipt}",
        "object": "response",
        "created_at": turn.created,
        "completed_at": turn.ended if status == "completed" else None,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": {"reason": cut} if cut else None,
        "model": turn.model,
        "output": output,
        "reasoning": {"effort": None, "summary": None},
        "metadata": metadata,
        "service_tier": "default",
        "usage": _usage(usage) if usage else None,
    }


def _usage(usage: object) -> Json:
    prompt, completion = count_of(usage, "prompt_tokens"), count_of(usage, "completion_tokens")
    stated: Json = usage if isinstance(usage, dict) else {}
    cached = count_of(stated.get("prompt_tokens_details"), "cached_tokens")
    thought = count_of(stated.get("completion_tokens_details"), "reasoning_tokens")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": prompt + completion,
    }


def cut_of(reason: str) -> str:
    """Return why an answer is incomplete, in this API's words; empty if it is whole."""
    return {"length": "max_output_tokens", "content_filter": "content_filter"}.get(reason, "")


def message_item(turn: Turn, text: str, *, cut: str = "") -> Json:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "type": "message",
        "id": f"msg_{turn.receipt}",
        "status": "incomplete" if cut else "completed",
        "role": "assistant",
        "content": [part],
    }


def reasoning_item(turn: Turn, text: str, *, cut: str = "") -> Json:
    return {
        "type": "reasoning",
        "id": f"rs_{turn.receipt}",
        "status": "incomplete" if cut else "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        "encrypted_content": sealed(text) if SEALED in str(turn.asked.get("include")) else None,
    }


def is_custom(asked: Json, name: str) -> bool:
    """Return whether a function of the chat is a custom tool of the request."""
    tools = (found for tool in asked.get("tools") or [] for found in spread(tool, "tools"))
    return any(flat == name and tool.get("type") == "custom" for flat, _, tool in tools)


def call_item(turn: Turn, call: Call, *, cut: str = "") -> Json:
    if is_custom(turn.asked, call.name):
        turn.spelling.keep(call.id, call.arguments)
        return {
            "type": "custom_tool_call",
            "id": f"ctc_{turn.receipt}_{call.number}",
            "call_id": call.id,
            "name": call.name,
            "input": input_of(call),
            "status": "incomplete" if cut and not call.whole else "completed",
        }
    named = {flat: (space, tool["name"]) for flat, space, tool in _spaced(turn.asked)}
    space, name = named.get(call.name, ("", call.name))
    return {
        "type": "function_call",
        **({"namespace": space} if space else {}),
        "id": f"fc_{turn.receipt}_{call.number}",
        "call_id": call.id,
        "name": name,
        "arguments": call.arguments or "{}",
        "status": "incomplete" if cut and not call.whole else "completed",
    }


def _spaced(asked: Json) -> list[tuple[str, str, Json]]:
    spaces = [tool for tool in asked.get("tools") or [] if tool.get("type") == "namespace"]
    return [found for tool in spaces for found in spread(tool, "tools")]


def spread(tool: Json, param: str) -> list[tuple[str, str, Json]]:
    """Return (name in a chat, namespace, tool) for a tool, or for each tool of a namespace."""
    if tool.get("type") != "namespace":
        return [(tool.get("name") or "", "", tool)]
    space = text_field(tool, "name", param)
    inner = listed(tool.get("tools"), f"{param}.tools")
    names = [text_field(each, "name", f"{param}.tools") for each in inner]
    return [(f"{space}{BETWEEN}{n}", space, each) for n, each in zip(names, inner, strict=True)]


def referred(record: Json, kind: str, number: int) -> list[Json] | None:
    """Return the item of an earlier answer, as a request holds it; None if there is none.

    `kind`: the beginning of its id.
    """
    message = record["response"]["choices"][0]["message"]
    if kind == "rs":
        return [{"type": "reasoning", "content": said(message)[1]}]
    if kind == "msg":
        return [{"role": "assistant", "content": said(message)[0]}]
    calls = message.get("tool_calls") or []
    if number >= len(calls):
        return None
    call = {"call_id": calls[number]["id"], **calls[number]["function"]}
    return [{"type": "function_call", **call}]
