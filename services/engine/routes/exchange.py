"""An HTTP request around its generation."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from fastapi import Depends, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from services.engine.domain.errors import ClientLeftError
from services.engine.domain.outputs import Delta, PromptScores, TokenLogprob, joined
from services.engine.engine import Engine, Generation
from services.engine.routes.errors import describe

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """The results of a prompt."""

    choices: list[Delta]
    scores: tuple[TokenLogprob, ...]


def _engine_of(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


EngineParam = Annotated[Engine, Depends(_engine_of)]


async def collect(request: Request, generation: Generation, prompts: int, n: int) -> list[Answer]:
    """Wait for every choice. Raises `ClientLeftError`; closes the generation in any case."""
    reading = asyncio.ensure_future(_gather(generation, prompts, n))
    leaving = asyncio.ensure_future(_until_client_leaves(request))
    try:
        await asyncio.wait({reading, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            return reading.result()
        raise ClientLeftError("the client left before its answer was ready")
    finally:
        leaving.cancel()
        reading.cancel()
        generation.close()


async def _gather(generation: Generation, prompts: int, n: int) -> list[Answer]:
    scores: list[tuple[TokenLogprob, ...]] = [()] * prompts
    deltas: list[list[list[Delta]]] = [[[] for _ in range(n)] for _ in range(prompts)]
    async for index, event in generation.events():
        if isinstance(event, Delta):
            deltas[index][event.index].append(event)
        elif isinstance(event, PromptScores):
            scores[index] = event.scores
    return [Answer([*map(joined, found)], scores[i]) for i, found in enumerate(deltas)]


async def _until_client_leaves(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def sse(chunk: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + orjson.dumps(chunk, option=orjson.OPT_NON_STR_KEYS) + b"\n\n"


class EventStream(StreamingResponse):
    """Streams a generation and closes it however the response ends."""

    # An error after the first byte becomes an error event. The stream then ends without [DONE], so
    # that it is not taken for a complete answer.

    def __init__(self, generation: Generation, chunks: AsyncIterator[bytes]) -> None:
        super().__init__(
            _guarded(chunks), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.close()


async def _guarded(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for chunk in chunks:
            yield chunk
    except Exception as error:  # noqa: BLE001  too late for another status
        yield sse(describe(error)[1])
