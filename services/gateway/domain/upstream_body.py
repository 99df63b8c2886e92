"""A user's request, for Reef's own nodes and for other endpoints: the fields that each knows."""

from collections.abc import Mapping
from typing import Any

import orjson

from reefcommon.config_sections import ModelEndpoint
from services.gateway.domain.exchange import Api, Exchange

_SAMPLED = """
model frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream
stream_options temperature top_p user
"""
_CHAT = """
messages audio function_call functions max_completion_tokens metadata modalities
parallel_tool_calls prediction prompt_cache_key prompt_cache_retention reasoning_effort
response_format safety_identifier service_tier store tool_choice tools top_logprobs verbosity
web_search_options
"""
# OpenAI's reference: a strict endpoint answers 400 to any other field. vLLM takes all that Reef's
# own nodes take, and ignores the rest; but no recipe trains on another model's tokens, so that
# they are asked for by Reef's nodes alone.
_KNOWN: Mapping[Api, str] = {
    "chat.completions": _SAMPLED + _CHAT,
    "completions": f"{_SAMPLED} prompt best_of echo suffix",
    "embeddings": "input model dimensions encoding_format user",
}
OPENAI = {api: frozenset(names.split()) for api, names in _KNOWN.items()}
LIMIT, NEW_LIMIT = "max_tokens", "max_completion_tokens"
# The thoughts of an earlier answer: vLLM reads the first field of its message, SGLang, DeepSeek
# and the embedded engine the second.
THOUGHTS = ("reasoning", "reasoning_content")


def body_for(
    entry: ModelEndpoint, exchange: Exchange, *, renames: bool = False
) -> tuple[bytes, list[str]]:
    """Return the request for an endpoint, and the names of the fields that were left out.

    `renames`: it takes no `max_tokens`.
    """
    body: dict[str, Any] = orjson.loads(exchange.upstream)
    asked = exchange.asked
    if not asked.logprobs:  # of Reef's own; a client's `top_logprobs` alone is an error anyway
        body.pop("logprobs", None)
    if not asked.token_ids:
        body.pop("return_token_ids", None)
    body["model"] = entry.model
    knows = {*OPENAI[exchange.api], *entry.also_knows}

    def lacks(name: str) -> bool:
        return name in entry.lacks or (entry.speaks == "openai" and name not in knows)

    left_out = [name for name in body if lacks(name)]
    for name in left_out:
        del body[name]
    for name in filter(lacks, THOUGHTS if exchange.api != "completions" else ()):
        if found := [message for message in body.get("messages") or () if name in message]:
            left_out.append(name)
        for message in found:
            del message[name]
    if renames and exchange.api == "chat.completions" and LIMIT in body:
        body[NEW_LIMIT] = body.pop(LIMIT)
    return orjson.dumps(body), left_out


def upstream_body(exchange: Exchange, decoded: dict[str, Any]) -> bytes:
    """Return the request for the engine, with its model name and the record's fields."""
    body = {**decoded, "model": exchange.model}
    if exchange.api == "chat.completions" and b'"tool_calls"' in exchange.raw:
        body["messages"] = [_with_arguments(message) for message in body["messages"]]
    if b'"reasoning' in exchange.raw and "messages" in body and exchange.api != "completions":
        body["messages"] = [_with_thoughts(message) for message in body["messages"]]
    if not body.get("priority"):
        body.pop("priority", None)
    if exchange.capture:
        body["return_token_ids"] = True
        if not exchange.asked.logprobs and body.get("top_logprobs") in (None, 0):
            body["logprobs"] = True if exchange.api == "chat.completions" else 1
        options = body.get("stream_options")
        if exchange.asked.stream and (options is None or isinstance(options, dict)):
            body["stream_options"] = {**(options or {}), "include_usage": True}
    return orjson.dumps(body)


def _with_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    found = [text for name in THOUGHTS if isinstance(text := message.get(name), str) and text]
    return {**message, **dict.fromkeys(THOUGHTS, found[0])} if found else message


def _with_arguments(message: dict[str, Any]) -> dict[str, Any]:
    # Many chat templates read a call's arguments as JSON, which "" and null are not.
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not any(map(_lacks_arguments, calls)):
        return message
    filled = [
        {**call, "function": {**call["function"], "arguments": "{}"}}
        if _lacks_arguments(call)
        else call
        for call in calls
    ]
    return {**message, "tool_calls": filled}


def _lacks_arguments(call: object) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and not function.get("arguments")
