"""`POST /v1/completions`."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from services.engine.domain.errors import wrong
from services.engine.domain.outputs import Delta
from services.engine.engine import Engine
from services.engine.routes.body import JsonRoute
from services.engine.routes.exchange import Answer, EngineParam
from services.engine.routes.params import check_supported, completion_params
from services.engine.routes.schemas import CompletionRequest
from services.engine.routes.writer import AnswerWriter, Json, ending

Prompt = str | list[int] | list[list[int]] | list[str]
router = APIRouter(route_class=JsonRoute)


@router.post("/v1/completions")
async def completions(body: CompletionRequest, request: Request, engine: EngineParam) -> Response:
    """Answer one or several prompts; choices are numbered prompt by prompt."""
    check_supported(body)
    if body.echo and body.stream:
        raise wrong("echo", "cannot be streamed by this server")
    prompts = await engine.run_on_thread(partial(prompt_ids, engine, body.prompt), "prompt")
    params = [completion_params(body, len(ids), engine.settings.max_model_len) for ids in prompts]
    generation = engine.generate(prompts, params, body.model)
    return await CompletionWriter(engine, body, prompts, params[0], generation).respond(request)


def prompt_ids(engine: Engine, prompt: Prompt) -> list[list[int]]:
    """Ids of each prompt. Raises `InvalidRequestError`."""
    if not prompt:
        raise wrong("prompt", "must not be empty")
    single = isinstance(prompt, str) or isinstance(prompt[0], int)
    entries: list[Any] = [prompt] if single else list(prompt)
    most = engine.settings.max_queued_requests
    if len(entries) > most:
        raise wrong("prompt", f"takes at most {most} prompts, got {len(entries)}")
    return [engine.encode(one, "prompt") if isinstance(one, str) else one for one in entries]


@dataclass(frozen=True)
class CompletionWriter(AnswerWriter):
    """`text_completion`."""

    prefix = "cmpl"
    whole_kind = chunk_kind = "text_completion"

    body: CompletionRequest
    _offsets: dict[int, int] = field(default_factory=dict)

    def choice(self, prompt_index: int, answer: Answer, choice: Delta) -> Json:
        prompt = self.prompts[prompt_index]
        decode = self.engine.tokenizer.decode
        echoed = decode(prompt, skip_special_tokens=False) if self.body.echo else ""
        shape = self._shape(prompt_index, choice, len(echoed)) | {"text": echoed + choice.text}
        shape |= self.tail(choice)
        if self.body.echo and self.params.logprobs is not None:
            shape["logprobs"] = self.formats.completion([prompt[0], *answer.scores, *choice.tokens])
        if self.body.return_token_ids:
            shape["prompt_token_ids"] = prompt
        if self.body.prompt_logprobs is not None:
            shape["prompt_logprobs"] = self.formats.prompt(answer.scores)
        return shape

    def parts(self, prompt_index: int, event: Delta) -> Iterator[Json]:
        index = prompt_index * self.params.n + event.index
        choice = self._shape(prompt_index, event, self._offsets.get(index, 0))
        if self.body.return_token_ids and index not in self._offsets:
            choice["prompt_token_ids"] = self.prompts[prompt_index]
        if event.finish_reason is not None:
            choice |= self.tail(event)
        self._offsets[index] = self._offsets.get(index, 0) + len(event.text)
        yield {"choices": [choice]}

    def _shape(self, prompt_index: int, source: Delta, offset: int) -> Json:
        asked = self.params.logprobs is not None
        return {
            "index": prompt_index * self.params.n + source.index,
            "text": source.text,
            **ending(source),
            "logprobs": self.formats.completion(source.tokens, offset) if asked else None,
        } | self.token_ids(source.tokens)
