"""The hot paths as the OpenAPI document shows them.

The edge answers them before FastAPI sees them.
"""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header
from pydantic import BaseModel, ConfigDict, Field

from services.gateway.control.desk import Desk
from services.gateway.domain.report import Report

Flag = Annotated[
    bool | int | str | None,
    Field(description="true or false; engines also take 1, `true` and the like"),
]
Texts = str | list[Any]


def _shape(*examples: dict[str, Any], **more: Any) -> ConfigDict:
    return ConfigDict(extra="allow", json_schema_extra={"examples": list(examples), **more})


def _any_of(*names: str) -> list[dict[str, Any]]:
    text = {"type": ["string", "array"]}
    return [{"required": [name], "properties": {name: text}} for name in names]


class Message(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(extra="allow")
    role: str
    content: Any = None


class ChatCompletion(BaseModel):
    """As OpenAI's reference has it: fields that Reef does not know are relayed."""

    model_config = _shape(
        {"messages": [{"role": "user", "content": "Greet me."}], "max_tokens": 16, "stream": False}
    )
    model: str | None = None
    messages: list[Message] = Field(min_length=1)
    stream: Flag = None


class TextCompletion(BaseModel):
    """A text to go on with. `prompt` or `prompt_embeds` is needed."""

    model_config = _shape(
        {"prompt": "Once upon a time", "max_tokens": 16}, anyOf=_any_of("prompt", "prompt_embeds")
    )
    model: str | None = None
    prompt: Texts | None = None
    prompt_embeds: Texts | None = None
    stream: Flag = None


class Embeddings(BaseModel):
    """Texts, or vLLM's conversation, to embed."""

    model_config = _shape(
        {"input": "a text"}, anyOf=[*_any_of("input"), {"required": ["messages"]}]
    )
    model: str | None = None
    input: Texts | None = None
    messages: list[Message] = Field([], min_length=1)


class AnthropicMessages(BaseModel):
    """As Anthropic's reference has it."""

    model_config = _shape(
        {"model": "reef", "max_tokens": 16, "messages": [{"role": "user", "content": "Greet me."}]}
    )
    model: str | None = None
    max_tokens: int = Field(ge=1)
    messages: list[Message] = Field(min_length=1)
    stream: Flag = None


class CountedMessages(BaseModel):
    """A request whose tokens are counted."""

    model_config = _shape({"messages": [{"role": "user", "content": "Greet me."}]})
    model: str | None = None
    messages: list[Message] = Field(min_length=1)


class OpenAIResponses(BaseModel):
    """As OpenAI's reference has it."""

    model_config = _shape({"model": "reef", "input": "Greet me.", "max_output_tokens": 16})
    model: str | None = None
    input: Texts
    previous_response_id: str | None = None
    stream: Flag = None


class ReportKept(BaseModel):
    """The report's own receipt."""

    agent_record_id: str
    scenario: str
    request_type: Literal["report"]


class ScenarioHeaders(BaseModel):
    """Headers of every hot path."""

    x_reef_scenario: str = Field("default", description="whose head release answers")
    traceparent: str = Field("", description="W3C trace context, continued")


class ExchangeHeaders(ScenarioHeaders):
    """Headers of an exchange with the model."""

    x_reef_release_id: str = Field("", description="answer with this release; 409 if not served")
    x_reef_agent_record_id: str = Field(
        "",
        description="a receipt of the client's choice: the same body gets the same answer again, "
        "another body 409",
    )
    x_reef_tag_session: str = Field(
        "", description="the session; other x-reef-tag-<name> headers are kept as tags"
    )
    x_reef_tag_turn_type: str = Field(
        "main", description="`side`: recorded, and never a unit of experience: titles, judges"
    )
    x_reef_session_end: str = Field(
        "false", description="`true`: this exchange is the last of its session"
    )
    x_reef_capture: str = Field("true", description="`false`: answered, not recorded, no receipt")


_RECEIPT = {
    "x-reef-agent-record-id": {
        "description": "the receipt: the record is durable",
        "schema": {"type": "string"},
    }
}
_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
_OBJECT = {"schema": {"type": "object"}}
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "the serving node's answer; a stream if `stream` is true",
        "headers": _RECEIPT,
        "content": {"application/json": _OBJECT, "text/event-stream": {"schema": _EVENT}},
    }
}
_VECTORS: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": _OBJECT}}}
Exchanged = Annotated[ExchangeHeaders, Header()]
Reported = Annotated[ScenarioHeaders, Header()]


def hot_routes(desk: Desk) -> APIRouter:
    """Describe the hot paths: scope, headers, body with an example, answers."""
    routes = APIRouter()
    infer, report = [Depends(desk.allow("infer"))], [Depends(desk.allow("report"))]

    @routes.post("/v1/chat/completions", tags=["inference"], dependencies=infer, responses=_ANSWER)
    async def answer_a_conversation(_headers: Exchanged, body: ChatCompletion) -> None:
        """Answer a conversation with the scenario's head release, and record it."""

    @routes.post("/v1/messages", tags=["inference"], dependencies=infer, responses=_ANSWER)
    async def answer_messages(_headers: Exchanged, body: AnthropicMessages) -> None:
        """Answer in Anthropic's format. The record holds the chat that it stands for."""

    @routes.post(
        "/v1/messages/count_tokens", tags=["inference"], dependencies=infer, responses=_VECTORS
    )
    async def count_tokens(_headers: Exchanged, body: CountedMessages) -> None:
        """Count the tokens of a request in Anthropic's format."""

    @routes.post("/v1/responses", tags=["inference"], dependencies=infer, responses=_ANSWER)
    async def respond(_headers: Exchanged, body: OpenAIResponses) -> None:
        """Answer in the format of OpenAI's Responses, also after an earlier response."""

    @routes.post("/v1/completions", tags=["inference"], dependencies=infer, responses=_ANSWER)
    async def complete_a_text(_headers: Exchanged, body: TextCompletion) -> None:
        """Complete a text with the scenario's head release, and record it."""

    @routes.post("/v1/embeddings", tags=["inference"], dependencies=infer, responses=_VECTORS)
    async def embed(_headers: Exchanged, body: Embeddings) -> None:
        """Relay a request for embeddings to the serving node."""

    @routes.post(
        "/reef/report",
        tags=["feedback"],
        dependencies=report,
        status_code=202,
        response_model=ReportKept,
        responses={202: {"headers": _RECEIPT}},
    )
    async def report_exchanges(_headers: Reported, body: Report) -> None:
        """Say how good earlier exchanges were."""

    return routes
