"""The parts of an answer in Messages."""

from services.gateway.domain.dialects.base import Json, Spelling, Turn, given_of
from services.gateway.domain.dialects.growing import Call
from services.gateway.domain.dialects.legible import count_of

# Parts of the vendor's usage that nothing here counts.
_UNCOUNTED: Json = {
    "cache_creation": None,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "inference_geo": None,
    "output_tokens_details": None,
    "server_tool_use": None,
    "service_tier": None,
}
_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


def head_of(turn: Turn) -> Json:
    # a message's id leads to its record
    head = {"id": f"msg_{turn.receipt}", "type": "message", "role": "assistant"}
    return {**head, "model": turn.model, "container": None, "stop_details": None}


def usage_of(usage: object) -> Json:
    prompt, completion = count_of(usage, "prompt_tokens"), count_of(usage, "completion_tokens")
    # This vendor counts the tokens that were read from a cache apart.
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = min(prompt, count_of(details, "cached_tokens"))
    counted = {"input_tokens": prompt - cached, "cache_read_input_tokens": cached}
    return {**_UNCOUNTED, **counted, "output_tokens": completion}


def shows_thoughts(turn: Turn) -> bool:
    """Return whether the client has asked for the model's thoughts."""
    asked = turn.asked.get("thinking")
    if not isinstance(asked, dict) or asked.get("display") == "omitted":
        return False
    return asked.get("type") in ("enabled", "adaptive")


def thinking_block(text: str) -> Json:
    return {"type": "thinking", "thinking": text, "signature": ""}


def text_block(text: str) -> Json:
    return {"type": "text", "text": text, "citations": None}


def use_block(call: Call, given: Json) -> Json:
    caller = {"type": "direct"}
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given, "caller": caller}


def stop_of(reason: str, sequence: str | None) -> tuple[str, str | None]:
    return ("stop_sequence" if sequence is not None else _REASONS[reason]), sequence


def whole_use(call: Call, spelling: Spelling) -> Json:
    arguments = call.arguments or "{}"
    spelling.keep(call.id, arguments)
    return use_block(call, given_of(arguments))
