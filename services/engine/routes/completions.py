"""`POST /v1/completions`: text or token ids in, one or several prompts."""

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from services.engine.domain.errors import InvalidRequestError
from services.engine.domain.outputs import Choice, Delta, TokenLogprob
from services.engine.engine import Engine, Generation
from services.engine.routes.body import JsonRoute
from services.engine.routes.chat import spans_json
from services.engine.routes.errors import json_response
from services.engine.routes.exchange import (
    DONE,
    Answer,
    EventStream,
    Usage,
    collect,
    engine_of,
    sse,
)
from services.engine.routes.logprobs import LogprobFormat
from services.engine.routes.params import check_format, completion_params
from services.engine.routes.schemas import CompletionRequest

router = APIRouter(route_class=JsonRoute)


@router.post("/v1/completions")
async def completions(
    body: CompletionRequest, request: Request, engine: Annotated[Engine, Depends(engine_of)]
) -> Response:
    """An OpenAI completion; choices are numbered prompt by prompt. `echo` is for whole answers only."""
    check_format(body)
    if body.echo and body.stream:
        raise InvalidRequestError("echo", "echo cannot be streamed by this server")
    prompts = await engine.aside(partial(prompt_ids, engine, body.prompt), "prompt")
    params = [completion_params(body, len(ids), engine.settings.max_model_len) for ids in prompts]
    writer = CompletionWriter.of(engine, body, prompts, params[0].n)
    generation = engine.generate(prompts, params, body.model)
    if body.stream:
        return EventStream(generation, writer.stream(generation))
    answers = await collect(request, generation, len(prompts), params[0].n)
    return json_response(writer.whole(answers))


def prompt_ids(
    engine: Engine, prompt: str | list[int] | list[list[int]] | list[str]
) -> list[list[int]]:
    """Ids of each prompt. Raises `InvalidRequestError`."""
    if not prompt:
        raise InvalidRequestError("prompt", "prompt must not be empty")
    entries: list[Any] = (
        [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else list(prompt)
    )
    most = engine.settings.max_queued_requests
    if len(entries) > most:
        raise InvalidRequestError(
            "prompt", f"prompt takes at most {most} prompts, got {len(entries)}"
        )
    return [
        engine.encode(entry, "prompt") if isinstance(entry, str) else entry for entry in entries
    ]


@dataclass(frozen=True, slots=True)
class CompletionWriter:
    """Writes answers in OpenAI's shape."""

    body: CompletionRequest
    prompts: list[list[int]]
    n: int
    formats: LogprobFormat
    engine: Engine
    response_id: str
    created: int

    @classmethod
    def of(
        cls, engine: Engine, body: CompletionRequest, prompts: list[list[int]], n: int
    ) -> "CompletionWriter":
        """For one request."""
        return cls(
            body=body,
            prompts=prompts,
            n=n,
            formats=LogprobFormat(engine.tokenizer, as_ids=bool(body.return_tokens_as_token_ids)),
            engine=engine,
            response_id=f"cmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
        )

    def whole(self, answers: list[Answer]) -> dict[str, Any]:
        """`text_completion`."""
        usage = Usage(self._prompt_tokens, sum(answer.completion_tokens for answer in answers))
        choices = [
            self._choice(prompt_index, answer, choice)
            for prompt_index, answer in enumerate(answers)
            for choice in answer.choices
        ]
        return self._head(answers[0].choices[0].version) | {
            "choices": choices,
            "usage": usage.as_json(),
        }

    async def stream(self, generation: Generation) -> AsyncIterator[bytes]:
        """`text_completion` chunks; a choice's first chunk carries its prompt's ids if they were asked for."""
        usage = Usage(self._prompt_tokens)
        offsets: dict[int, int] = {}
        version = ""
        async for prompt_index, event in generation.events():
            if not isinstance(event, Delta):
                continue
            index = prompt_index * self.n + event.index
            choice: dict[str, Any] = {
                "index": index,
                "text": event.text,
                "finish_reason": event.finish_reason,
            }
            choice |= {"stop_reason": event.stop_reason}
            choice |= self._token_fields(event.tokens, offsets.get(index, 0))
            if self.body.return_token_ids and index not in offsets:
                choice["prompt_token_ids"] = self.prompts[prompt_index]
            if self.body.return_token_ids and event.finish_reason is not None:
                choice["weight_versions"] = spans_json(event)
            offsets[index] = offsets.get(index, 0) + len(event.text)
            usage.completion_tokens += len(event.tokens)
            version = event.version
            yield sse(self._head(version) | {"choices": [choice]})
        if self.body.stream_options is not None and self.body.stream_options.include_usage:
            yield sse(self._head(version) | {"choices": [], "usage": usage.as_json()})
        yield DONE

    @property
    def _prompt_tokens(self) -> int:
        return sum(len(ids) for ids in self.prompts)

    def _choice(self, prompt_index: int, answer: Answer, choice: Choice) -> dict[str, Any]:
        prompt = self.prompts[prompt_index]
        echoed = (
            self.engine.tokenizer.decode(prompt, skip_special_tokens=False)
            if self.body.echo
            else ""
        )
        shape: dict[str, Any] = {
            "index": prompt_index * self.n + choice.index,
            "text": echoed + choice.text,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        shape |= self._token_fields(choice.tokens, len(echoed))
        if self.body.echo and self.body.logprobs is not None:
            shape["logprobs"] = self.formats.completion([prompt[0], *answer.scores, *choice.tokens])
        if self.body.return_token_ids:
            shape |= {"prompt_token_ids": prompt, "weight_versions": spans_json(choice)}
        if self.body.prompt_logprobs is not None:
            shape["prompt_logprobs"] = self.formats.prompt(answer.scores)
        return shape

    def _token_fields(
        self, tokens: "list[TokenLogprob] | tuple[TokenLogprob, ...]", offset: int
    ) -> dict[str, Any]:
        logprobs = None if self.body.logprobs is None else self.formats.completion(tokens, offset)
        fields: dict[str, Any] = {"logprobs": logprobs}
        if self.body.return_token_ids:
            fields["token_ids"] = [token.token_id for token in tokens]
        return fields

    def _head(self, version: str) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.body.model or self.engine.settings.served_model_name,
            "system_fingerprint": f"reef-engine-{version}",
            "weight_version": version,
        }
