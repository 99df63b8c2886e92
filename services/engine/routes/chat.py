"""`POST /v1/chat/completions`."""

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from services.engine.domain.errors import InvalidRequestError
from services.engine.domain.messages import characters, checked_tools, template_messages
from services.engine.domain.outputs import Choice, Delta, TokenLogprob
from services.engine.domain.tool_calls import ToolCall, ToolCallParser
from services.engine.engine import Engine, Generation
from services.engine.routes.body import JsonRoute
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
from services.engine.routes.params import chat_params, check_format
from services.engine.routes.schemas import ChatRequest, TokenizeRequest

router = APIRouter(route_class=JsonRoute)


@router.post("/v1/chat/completions")
async def chat_completions(
    body: ChatRequest, request: Request, engine: Annotated[Engine, Depends(engine_of)]
) -> Response:
    """An OpenAI chat completion, streamed or whole, with vLLM's token ids on request."""
    check_format(body)
    prompt_ids = await render_chat(engine, body)
    params = chat_params(body, len(prompt_ids), engine.settings.max_model_len)
    writer = ChatWriter.of(engine, body, prompt_ids)
    generation = engine.generate([prompt_ids], [params], body.model)
    if body.stream:
        return EventStream(generation, writer.stream(generation, params.n))
    answers = await collect(request, generation, 1, params.n)
    return json_response(writer.whole(answers[0]))


async def render_chat(engine: Engine, body: ChatRequest | TokenizeRequest) -> list[int]:
    """Prompt ids of a conversation. Raises `InvalidRequestError`."""
    engine.tokenizer.check_options(body.chat_template_kwargs or {})
    messages, tools = template_messages(body.messages or ()), checked_tools(body.tools)
    engine.check_length(characters([messages, tools]), "messages")
    options = (body.chat_template_kwargs or {}) | {
        "add_generation_prompt": body.add_generation_prompt,
        "continue_final_message": body.continue_final_message,
    }

    def ids() -> list[int]:
        return engine.encode(engine.tokenizer.render(messages, tools, options), "messages")

    return await engine.aside(ids, "messages")


def parses_tools(body: ChatRequest) -> bool:
    """Whether calls are looked for in the answer. Raises `InvalidRequestError` for a forced choice."""
    if body.tool_choice not in (None, "auto", "none"):
        raise InvalidRequestError(
            "tool_choice", "tool_choice must be 'auto' or 'none': calls cannot be forced here"
        )
    if body.tool_choice == "auto" and not body.tools:
        raise InvalidRequestError("tool_choice", "tool_choice 'auto' needs tools")
    return bool(body.tools) and body.tool_choice != "none"


@dataclass(frozen=True, slots=True)
class ChatWriter:
    """Writes answers in OpenAI's shape; whole and streamed answers carry the same content."""

    body: ChatRequest
    prompt_ids: list[int]
    formats: LogprobFormat
    tools: bool
    response_id: str
    created: int
    model: str

    @classmethod
    def of(cls, engine: Engine, body: ChatRequest, prompt_ids: list[int]) -> "ChatWriter":
        """Raises `InvalidRequestError` for a tool choice that cannot be met."""
        return cls(
            body=body,
            prompt_ids=prompt_ids,
            formats=LogprobFormat(engine.tokenizer, as_ids=bool(body.return_tokens_as_token_ids)),
            tools=parses_tools(body),
            response_id=f"chatcmpl-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=body.model or engine.settings.served_model_name,
        )

    def whole(self, answer: Answer) -> dict[str, Any]:
        """`chat.completion`."""
        usage = Usage(len(self.prompt_ids), answer.completion_tokens)
        version = answer.choices[0].version
        shape = self._head("chat.completion", version) | {
            "choices": [self._choice(choice) for choice in answer.choices],
            "usage": usage.as_json(),
        }
        if self.body.return_token_ids:
            shape["prompt_token_ids"] = self.prompt_ids
        if self.body.prompt_logprobs is not None:
            shape["prompt_logprobs"] = self.formats.prompt(answer.scores)
        return shape

    async def stream(self, generation: Generation, n: int) -> AsyncIterator[bytes]:
        """`chat.completion.chunk` events."""
        usage = Usage(len(self.prompt_ids))
        parsers = [ToolCallParser() for _ in range(n)]
        version = ""
        async for _, event in generation.events():
            if not isinstance(event, Delta):
                continue
            if not version:
                for chunk in self._opening(n, event.version):
                    yield sse(chunk)
            version = event.version
            usage.completion_tokens += len(event.tokens)
            yield sse(self._chunk(event, parsers[event.index]))
        if self.body.stream_options is not None and self.body.stream_options.include_usage:
            yield sse(
                self._head("chat.completion.chunk", version)
                | {"choices": [], "usage": usage.as_json()}
            )
        yield DONE

    def _opening(self, n: int, version: str) -> list[dict[str, Any]]:
        chunks = []
        for index in range(n):
            choice = {
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "finish_reason": None,
            }
            chunk = self._head("chat.completion.chunk", version) | {"choices": [choice]}
            if self.body.return_token_ids and index == 0:
                chunk["prompt_token_ids"] = self.prompt_ids
            chunks.append(chunk)
        return chunks

    def _chunk(self, event: Delta, parser: ToolCallParser) -> dict[str, Any]:
        text, calls = (event.text, []) if not self.tools else parser.push(event.text)
        if self.tools and event.finish_reason is not None:
            rest, last = parser.flush()
            text, calls = text + rest, calls + last
        delta: dict[str, Any] = {"content": text}
        if calls:
            delta["tool_calls"] = [{"index": call.index} | _call_json(call) for call in calls]
        choice = {"index": event.index, "delta": delta, "finish_reason": None}
        choice |= self._token_fields(event.tokens)
        if event.finish_reason is not None:
            choice |= _ending(event, called=parser.count > 0)
            if self.body.return_token_ids:
                choice["weight_versions"] = spans_json(event)
        return self._head("chat.completion.chunk", event.version) | {"choices": [choice]}

    def _choice(self, choice: Choice) -> dict[str, Any]:
        parser = ToolCallParser()
        message: dict[str, Any] = {"role": "assistant", "content": choice.text}
        if self.tools:
            content, calls = parser.push(choice.text)
            rest, last = parser.flush()
            content, calls = content + rest, calls + last
            message["content"] = content if content or not calls else None
            if calls:
                message["tool_calls"] = [_call_json(call) for call in calls]
        shape = {"index": choice.index, "message": message} | self._token_fields(choice.tokens)
        shape |= _ending(choice, called=parser.count > 0)
        if self.body.return_token_ids:
            shape["weight_versions"] = spans_json(choice)
        return shape

    def _token_fields(
        self, tokens: "list[TokenLogprob] | tuple[TokenLogprob, ...]"
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "logprobs": self.formats.chat(tokens) if self.body.logprobs else None
        }
        if self.body.return_token_ids:
            fields["token_ids"] = [token.token_id for token in tokens]
        return fields

    def _head(self, kind: str, version: str) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"reef-engine-{version}",
            "weight_version": version,
        }


def spans_json(source: Choice | Delta) -> list[dict[str, Any]]:
    """vLLM's `weight_versions`."""
    return [
        {"version": span.version, "start": span.start, "end": span.end} for span in source.spans
    ]


def _ending(source: Choice | Delta, *, called: bool) -> dict[str, Any]:
    reason = "tool_calls" if called and source.finish_reason == "stop" else source.finish_reason
    return {"finish_reason": reason, "stop_reason": source.stop_reason}


def _call_json(call: ToolCall) -> dict[str, Any]:
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
