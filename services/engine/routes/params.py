"""Checked sampling parameters from a request body."""

from collections.abc import Mapping
from dataclasses import replace

from services.engine.domain.errors import InvalidRequestError, wrong
from services.engine.domain.sampling import SamplingParams, token_budget
from services.engine.routes import schemas

COMPLETIONS_DEFAULT_TOKENS = 16
_CONVERTED = {"max_tokens", "stop", "stop_token_ids", "logit_bias", "allowed_token_ids"}
_PLAIN_FIELDS = schemas.SamplingFields.model_fields.keys() - _CONVERTED


def chat_params(body: schemas.ChatRequest, prompt_length: int, context: int) -> SamplingParams:
    """`max_completion_tokens` wins over `max_tokens`; the default is the rest of the context."""
    if body.top_logprobs and not body.logprobs:
        raise wrong("top_logprobs", "needs logprobs: true")
    field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    budget = token_budget(prompt_length, getattr(body, field), context, field)
    return _params(body, budget, (body.top_logprobs or 0) if body.logprobs else None)


def completion_params(
    body: schemas.CompletionRequest, prompt_length: int, context: int
) -> SamplingParams:
    """`max_tokens: 0` is allowed if the prompt itself is wanted (`echo`, `prompt_logprobs`)."""
    asked = COMPLETIONS_DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    scoring = body.echo or body.prompt_logprobs is not None
    if body.suffix:
        raise wrong("suffix", "is not supported")
    budget = token_budget(prompt_length, asked, context, least=0 if scoring else 1)
    params = _params(body, budget, body.logprobs)
    if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
        return replace(params, prompt_logprobs=body.logprobs)
    return params


def generate_params(body: schemas.GenerateRequest, context: int) -> SamplingParams:
    """vLLM's `SamplingParams`: 16 tokens by default."""
    fields = body.sampling_params
    asked = COMPLETIONS_DEFAULT_TOKENS if fields.max_tokens is None else fields.max_tokens
    return _params(fields, token_budget(len(body.token_ids), asked, context), fields.logprobs)


# Fields of OpenAI, vLLM and their relatives that change the answer and are not implemented here.
# Ignoring one would answer another question than was asked. The first ask for nothing if they
# have the value given here, the others if they are empty or false.
_NEUTRAL: dict[str, object] = {"best_of": 1, "length_penalty": 1.0, "typical_p": 1.0, "tfs": 1.0}
_NEUTRAL |= {"skip_special_tokens": True, "parallel_tool_calls": True, "modalities": ["text"]}
_NEUTRAL |= {"function_call": "none", "reasoning_effort": "none"}
_EMPTY = (
    "use_beam_search top_a bad_words logits_processors truncate_prompt_tokens "
    "prompt_embeds structured_outputs guided_json guided_regex guided_choice guided_grammar "
    "include_stop_str_in_output functions audio prediction web_search_options chat_template "
    "documents"
)


def check_unsupported(extra: Mapping[str, object] | None) -> None:
    """Raises `InvalidRequestError` if this server would have to ignore a field."""
    for name, value in (extra or {}).items():
        if value is None or (name in _NEUTRAL and value == _NEUTRAL[name]):
            continue
        if name in _NEUTRAL or (value and name in _EMPTY.split()):
            raise wrong(name, "is not supported by this server")


def check_supported(body: schemas.GenerationFields) -> None:
    """Refuse constrained output and unsupported fields. Raises `InvalidRequestError`."""
    check_unsupported(body.model_extra)
    if body.response_format is not None and body.response_format.type != "text":
        kind = body.response_format.type
        raise wrong("response_format", f"{kind!r} is not supported by this server; only 'text' is")
    if body.stream_options is not None and not body.stream:
        raise wrong("stream_options", "is only allowed with stream: true")


def _params(fields: schemas.SamplingFields, budget: int, logprobs: int | None) -> SamplingParams:
    given = fields.model_dump(include=_PLAIN_FIELDS, exclude_none=True)
    stop = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ())
    return SamplingParams(
        max_tokens=budget,
        stop=stop,
        stop_token_ids=frozenset(fields.stop_token_ids or ()),
        logit_bias=_biases(fields.logit_bias or {}),
        allowed_token_ids=_allowed(fields.allowed_token_ids),
        logprobs=logprobs,
        **given,
    )


def _allowed(given: list[int] | None) -> tuple[int, ...]:
    if given is not None and not given:  # as in vLLM: no token would be left
        raise wrong("allowed_token_ids", "must not be empty")
    return tuple(sorted(set(given or ())))


def _biases(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    for key in given:
        # int() would also read " 1 ", "1_0" and digits of other scripts.
        if not (key.isascii() and key.isdigit() and len(key) < 20):
            raise InvalidRequestError("logit_bias", "logit_bias: keys must be token ids in decimal")
    return tuple((int(key), bias) for key, bias in given.items())
