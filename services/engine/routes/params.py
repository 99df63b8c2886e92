"""From a request body to checked sampling parameters."""

from dataclasses import replace

from services.engine.domain.errors import InvalidRequestError
from services.engine.domain.sampling import SamplingParams, token_budget
from services.engine.routes.schemas import (
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    GenerationFields,
    SamplingFields,
)

COMPLETIONS_DEFAULT_TOKENS = 16
_PLAIN_FIELDS = (
    *("n", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "prompt_logprobs", "priority"),
)


def chat_params(body: ChatRequest, prompt_length: int, max_model_len: int) -> SamplingParams:
    """`max_completion_tokens` wins over `max_tokens`; without either the rest of the context may be used."""
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequestError("top_logprobs", "top_logprobs needs logprobs: true")
    field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if asked is not None and asked < 1:
        raise InvalidRequestError(field, f"{field} must be at least 1, got {asked}")
    budget = token_budget(prompt_length, asked, max_model_len, field)
    return _params(body, budget, (body.top_logprobs or 0) if body.logprobs else None)


def completion_params(
    body: CompletionRequest, prompt_length: int, max_model_len: int
) -> SamplingParams:
    """`max_tokens: 0` is allowed where the prompt itself is wanted back (`echo`, `prompt_logprobs`)."""
    asked = COMPLETIONS_DEFAULT_TOKENS if body.max_tokens is None else body.max_tokens
    scoring = body.echo or body.prompt_logprobs is not None
    if asked < (0 if scoring else 1):
        raise InvalidRequestError("max_tokens", f"max_tokens must be at least 1, got {asked}")
    if body.suffix:
        raise InvalidRequestError("suffix", "suffix is not supported")
    params = _params(body, token_budget(prompt_length, asked, max_model_len), body.logprobs)
    if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
        return replace(params, prompt_logprobs=body.logprobs)
    return params


def generate_params(body: GenerateRequest, max_model_len: int) -> SamplingParams:
    """As `SamplingParams` of vLLM: 16 tokens unless said otherwise."""
    fields = body.sampling_params
    asked = COMPLETIONS_DEFAULT_TOKENS if fields.max_tokens is None else fields.max_tokens
    if asked < 1:
        raise InvalidRequestError("max_tokens", f"max_tokens must be at least 1, got {asked}")
    return _params(fields, token_budget(len(body.token_ids), asked, max_model_len), fields.logprobs)


def check_format(body: GenerationFields) -> None:
    """Refuse constrained output, which this server does not have. Raises `InvalidRequestError`."""
    if body.response_format is not None and body.response_format.type != "text":
        msg = f"response_format {body.response_format.type!r} is not supported by this server; only 'text' is"
        raise InvalidRequestError("response_format", msg)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError(
            "stream_options", "stream_options is only allowed with stream: true"
        )


def _params(fields: SamplingFields, budget: int, logprobs: int | None) -> SamplingParams:
    given = {name: value for name in _PLAIN_FIELDS if (value := getattr(fields, name)) is not None}
    stop = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ())
    return SamplingParams(
        max_tokens=budget,
        stop=stop,
        stop_token_ids=frozenset(fields.stop_token_ids or ()),
        logit_bias=_biases(fields.logit_bias or {}),
        logprobs=logprobs,
        **given,
    )


def _biases(given: dict[str, float]) -> tuple[tuple[int, float], ...]:
    for key in given:
        # int() would also read " 1 ", "1_0" and digits of other scripts.
        if not (key.isascii() and key.isdigit() and len(key) < 20):
            raise InvalidRequestError("logit_bias", "logit_bias: keys must be token ids in decimal")
    return tuple((int(key), bias) for key, bias in given.items())
