"""`/inference/v1/generate`, `/tokenize`, `/detokenize`."""

import uuid
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from services.engine.domain.errors import InvalidRequestError
from services.engine.domain.outputs import Delta
from services.engine.domain.sampling import check_ids
from services.engine.routes.body import JsonRoute
from services.engine.routes.chat import render_chat
from services.engine.routes.errors import json_response
from services.engine.routes.exchange import EngineParam, collect
from services.engine.routes.logprobs import LogprobFormat
from services.engine.routes.params import check_unsupported, generate_params
from services.engine.routes.schemas import DetokenizeRequest, GenerateRequest, TokenizeRequest
from services.engine.routes.writer import ending, spans_json

router = APIRouter(route_class=JsonRoute)


@router.post("/inference/v1/generate")
async def generate(body: GenerateRequest, request: Request, engine: EngineParam) -> Response:
    """Generate from ids; the answer has the weights' version of each token."""
    if body.stream:
        remedy = "use /v1/completions with token ids"
        raise InvalidRequestError("stream", f"this route does not stream; {remedy}")
    check_unsupported(body.sampling_params.model_extra)
    check_ids("token_ids", body.token_ids, engine.vocab_size)
    params = generate_params(body, engine.settings.max_model_len)
    formats = LogprobFormat(engine.tokenizer)
    generation = engine.generate([body.token_ids], [params], body.model)
    answer = (await collect(request, generation, 1, params.n))[0]
    logprobs, scored = params.logprobs is not None, params.prompt_logprobs is not None
    shape = {
        "request_id": body.request_id or uuid.uuid4().hex,
        "choices": [_choice(choice, formats, logprobs=logprobs) for choice in answer.choices],
        "prompt_logprobs": formats.prompt(answer.scores) if scored else None,
    }
    return json_response(shape)


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, engine: EngineParam) -> Response:
    """Ids of `prompt`, or of `messages` as the chat route renders them."""
    engine.adapters.resolve(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("prompt", "give either prompt or messages")
    if body.messages is not None:
        ids = await render_chat(engine, body, body.messages)
    else:
        encode = partial(engine.tokenizer.encode, add_special_tokens=body.add_special_tokens)
        ids = await engine.run_on_thread(partial(encode, body.prompt or ""), "prompt")
    texts = [engine.tokenizer.token_text(i) for i in ids] if body.return_token_strs else None
    shape = {"count": len(ids), "max_model_len": engine.settings.max_model_len}
    return json_response(shape | {"tokens": ids, "token_strs": texts})


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, engine: EngineParam) -> Response:
    """Text of ids, special tokens included."""
    engine.adapters.resolve(body.model)
    check_ids("tokens", body.tokens, engine.vocab_size)
    decode = partial(engine.tokenizer.decode, body.tokens, skip_special_tokens=False)
    return json_response({"prompt": await engine.run_on_thread(decode, "tokens")})


def _choice(choice: Delta, formats: LogprobFormat, *, logprobs: bool) -> dict[str, Any]:
    return {
        "index": choice.index,
        "token_ids": [token.token_id for token in choice.tokens],
        "logprobs": formats.generate(choice.tokens) if logprobs else None,
        **ending(choice),
        "weight_versions": spans_json(choice),
    }
