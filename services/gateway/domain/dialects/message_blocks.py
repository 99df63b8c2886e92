"""The parts of an answer in Messages."""

from services.gateway.domain.dialects.base import Json, Spelling, Turn, given_of
from services.gateway.domain.dialects.growing import Call
from services.gateway.domain.dialects.legible import count_of
from services.gateway.domain.dialects.thoughts import sealed

# Parts of the vendor's usage that nothing here counts.
_UNCOUNTED = "cache_creation inference_geo output_tokens_details server_tool_use service_tier"
_NO_USAGE: Json = {**dict.fromkeys(_UNCOUNTED.split()), "cache_creation_input_tokens": 0}
_REASONS = {"stop": "end_turn", "length": "max_tokens"}
_REASONS |= {"tool_calls": "tool_use", "content_filter": "refusal"}


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
    return {**_NO_USAGE, **counted, "output_tokens": completion}


def asks_thoughts(turn: Turn) -> bool:
    """Return whether the client has asked for the model's thoughts."""
    asked = turn.asked.get("thinking")
    return isinstance(asked, dict) and asked.get("type") in ("enabled", "adaptive")


def thinking_block(turn: Turn, thoughts: str) -> Json:
    """Return thoughts to show, or to keep for the next request if none are to be shown."""
    omitted = turn.asked["thinking"].get("display") == "omitted"
    shown, kept = ("", thoughts) if omitted else (thoughts, "")
    return {"type": "thinking", "thinking": shown, "signature": sealed(kept)}


def text_block(text: str) -> Json:
    return {"type": "text", "text": text, "citations": []}


def use_block(call: Call, given: Json) -> Json:
    caller = {"type": "direct"}
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": given, "caller": caller}


def stop_of(reason: str, sequence: str | None) -> tuple[str, str | None]:
    return ("stop_sequence" if sequence is not None else _REASONS[reason]), sequence


def whole_use(call: Call, spelling: Spelling) -> Json:
    arguments = call.arguments or "{}"
    spelling.keep(call.id, arguments)
    return use_block(call, given_of(arguments))
