"""The common part of chat and text answers."""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from fastapi import Request, Response

from services.engine.domain.outputs import Delta, TokenLogprob
from services.engine.domain.sampling import SamplingParams
from services.engine.engine import Engine, Generation
from services.engine.routes.errors import json_response
from services.engine.routes.exchange import DONE, Answer, EventStream, collect, sse
from services.engine.routes.logprobs import LogprobFormat
from services.engine.routes.schemas import GenerationFields

Json = dict[str, Any]


@dataclass(frozen=True)
class AnswerWriter(ABC):
    """Writes an answer in OpenAI's shape, streamed or whole, with the same content."""

    engine: Engine
    body: GenerationFields
    prompts: Sequence[list[int]]
    params: SamplingParams
    generation: Generation
    _number: str = field(default_factory=lambda: uuid.uuid4().hex, init=False)
    _created: int = field(default_factory=lambda: int(time.time()), init=False)

    prefix: ClassVar[str]
    whole_kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    @cached_property
    def formats(self) -> LogprobFormat:
        as_ids = bool(self.body.return_tokens_as_token_ids)
        return LogprobFormat(self.engine.tokenizer, as_ids=as_ids)

    async def respond(self, request: Request) -> Response:
        """Stream the generation, or wait for it."""
        if self.body.stream:
            return EventStream(self.generation, self._stream())
        count, n = len(self.prompts), self.params.n
        return json_response(self._whole(await collect(request, self.generation, count, n)))

    @abstractmethod
    def choice(self, prompt_index: int, answer: Answer, choice: Delta) -> Json:
        """An entry of `choices` of a whole answer."""

    @abstractmethod
    def parts(self, prompt_index: int, event: Delta) -> Iterator[Json]:
        """The chunks of an event, without the fields that all chunks share."""

    def extras(self, _answers: list[Answer]) -> Json:
        """More fields of a whole answer."""
        return {}

    def tail(self, source: Delta) -> Json:
        """`weight_versions` of a complete choice."""
        return {"weight_versions": spans_json(source)} if self.body.return_token_ids else {}

    def token_ids(self, tokens: Sequence[TokenLogprob]) -> Json:
        """`token_ids`, if they were asked for."""
        asked = self.body.return_token_ids
        return {"token_ids": [token.token_id for token in tokens]} if asked else {}

    def _whole(self, answers: list[Answer]) -> Json:
        whole = [(i, answer, one) for i, answer in enumerate(answers) for one in answer.choices]
        usage = self._usage(sum(len(one.tokens) for _, _, one in whole))
        choices = [self.choice(*parts) for parts in whole]
        shape = self._head(self.whole_kind, answers[0].choices[0].version)
        shape |= {"choices": choices, "usage": usage}
        return shape | self.extras(answers) | self._sampling()

    async def _stream(self) -> AsyncIterator[bytes]:
        completion_tokens, version = 0, ""
        options = self.body.stream_options
        with_usage = options is not None and options.include_usage
        async for index, event in self.generation.events():
            if not isinstance(event, Delta):
                continue
            version = event.version
            completion_tokens += len(event.tokens)
            parts = list(self.parts(index, event))
            if self.generation.ended and not with_usage:
                parts[-1] |= self._sampling()
            for part in parts:
                yield sse(self._head(self.chunk_kind, version) | part)
        if with_usage:
            last = {"choices": [], "usage": self._usage(completion_tokens)} | self._sampling()
            yield sse(self._head(self.chunk_kind, version) | last)
        yield DONE

    def _usage(self, completion_tokens: int) -> Json:
        prompt_tokens = sum(len(ids) for ids in self.prompts)
        shape = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
        return shape | {"total_tokens": prompt_tokens + completion_tokens}

    def _sampling(self) -> Json:
        stated = self.params.effective(self.generation.seed)
        return {"sampling_params": stated} if self.body.return_token_ids else {}

    def _head(self, kind: str, version: str) -> Json:
        return {
            "id": f"{self.prefix}-{self._number}",
            "object": kind,
            "created": self._created,
            "model": self.body.model or self.engine.settings.served_model_name,
            "system_fingerprint": f"reef-engine-{version}",
            "weight_version": version,
        }


def spans_json(source: Delta) -> list[Json]:
    """vLLM's `weight_versions`."""
    return [{"version": s.version, "start": s.start, "end": s.end} for s in source.spans]


def ending(source: Delta) -> Json:
    return {"finish_reason": source.finish_reason, "stop_reason": source.stop_reason}
