"""`POST /v1/chat/completions`."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fastapi import APIRouter, Request, Response

from services.engine.domain.errors import wrong
from services.engine.domain.messages import checked_tools, count_characters, template_messages
from services.engine.domain.outputs import Delta, TokenLogprob
from services.engine.domain.tool_calls import ToolCall, ToolCallParser
from services.engine.engine import Engine
from services.engine.routes.body import JsonRoute
from services.engine.routes.exchange import Answer, EngineParam
from services.engine.routes.params import chat_params, check_supported
from services.engine.routes.schemas import ChatRequest, TemplateFields
from services.engine.routes.writer import AnswerWriter, Json, ending

router = APIRouter(route_class=JsonRoute)


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatRequest, request: Request, engine: EngineParam) -> Response:
    """Answer in OpenAI's shape, streamed or whole, with vLLM's token ids on request."""
    check_supported(body)
    tools = parses_tools(body)
    prompt = await render_chat(engine, body, body.messages)
    params = chat_params(body, len(prompt), engine.settings.max_model_len)
    generation = engine.generate([prompt], [params], body.model)
    parsers = [ToolCallParser() for _ in range(params.n)] if tools else []
    return await ChatWriter(engine, body, [prompt], params, generation, parsers).respond(request)


async def render_chat(engine: Engine, body: TemplateFields, messages: Sequence[Json]) -> list[int]:
    """Prompt ids of a conversation. Raises `InvalidRequestError`."""
    engine.tokenizer.check_options(body.chat_template_kwargs or {})
    own = ("add_generation_prompt", "continue_final_message")
    options = (body.chat_template_kwargs or {}) | {name: getattr(body, name) for name in own}

    def ids() -> list[int]:
        plain, tools = template_messages(messages), checked_tools(body.tools)
        engine.check_length(count_characters([plain, tools], engine.most_characters), "messages")
        return engine.encode(engine.tokenizer.render(plain, tools, options), "messages")

    return await engine.run_on_thread(ids, "messages")


def parses_tools(body: ChatRequest) -> bool:
    """True if the answer may hold calls. Raises `InvalidRequestError` if a call is forced."""
    if body.tool_choice not in (None, "auto", "none"):
        raise wrong("tool_choice", "must be 'auto' or 'none': calls cannot be forced here")
    if body.tool_choice == "auto" and not body.tools:
        raise wrong("tool_choice", "'auto' needs tools")
    return bool(body.tools) and body.tool_choice != "none"


@dataclass(frozen=True)
class ChatWriter(AnswerWriter):
    """`chat.completion` and its chunks."""

    prefix = "chatcmpl"
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    # One per choice if calls are looked for, else none.
    parsers: list[ToolCallParser]
    _opened: set[bool] = field(default_factory=set)

    def extras(self, answers: list[Answer]) -> Json:
        fields: Json = {"prompt_token_ids": self.prompts[0]} if self.body.return_token_ids else {}
        if self.params.prompt_logprobs is not None:
            fields["prompt_logprobs"] = self.formats.prompt(answers[0].scores)
        return fields

    def choice(self, _prompt_index: int, _answer: Answer, choice: Delta) -> Json:
        content, calls = self._split(choice.index, choice.text, ended=True)
        message: Json = {"role": "assistant", "content": content if content or not calls else None}
        if calls:
            message["tool_calls"] = [_call_json(call) for call in calls]
        shape = {"index": choice.index, "message": message} | self._tokens(choice.tokens)
        return shape | self._ending(choice) | self.tail(choice)

    def parts(self, _prompt_index: int, event: Delta) -> Iterator[Json]:
        if not self._opened:
            self._opened.add(True)
            yield from self._opening()
        content, calls = self._split(event.index, event.text, ended=event.finish_reason is not None)
        delta: Json = {"content": content}
        if calls:
            delta["tool_calls"] = [{"index": call.index} | _call_json(call) for call in calls]
        choice = {"index": event.index, "delta": delta, "finish_reason": None}
        choice |= self._tokens(event.tokens)
        if event.finish_reason is not None:
            choice |= self._ending(event) | self.tail(event)
        yield {"choices": [choice]}

    def _opening(self) -> Iterator[Json]:
        for index in range(self.params.n):
            delta = {"role": "assistant", "content": ""}
            part: Json = {"choices": [{"index": index, "delta": delta, "finish_reason": None}]}
            if self.body.return_token_ids and index == 0:
                part["prompt_token_ids"] = self.prompts[0]
            yield part

    def _split(self, index: int, text: str, *, ended: bool) -> tuple[str, list[ToolCall]]:
        if not self.parsers:
            return text, []
        content, calls = self.parsers[index].push(text)
        if ended:
            rest, last = self.parsers[index].flush()
            content, calls = content + rest, calls + last
        return content, calls

    def _tokens(self, tokens: Sequence[TokenLogprob]) -> Json:
        asked = self.params.logprobs is not None
        return {"logprobs": self.formats.chat(tokens) if asked else None} | self.token_ids(tokens)

    def _ending(self, source: Delta) -> Json:
        called = bool(self.parsers) and self.parsers[source.index].count > 0
        stopped = called and source.finish_reason == "stop"
        return ending(source) | ({"finish_reason": "tool_calls"} if stopped else {})


def _call_json(call: ToolCall) -> Json:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}
