"""The hot paths in the OpenAPI document: they are answered outside of FastAPI, so it cannot describe them itself."""

from collections.abc import Mapping
from typing import Any

from services.gateway.domain.access import Scope

_HEADERS: tuple[tuple[str, str], ...] = (
    ("x-reef-scenario", "the scenario whose head release answers; absent: `default`"),
    ("x-reef-release-id", "answer with this release; 409 if it is not served"),
    (
        "x-reef-agent-record-id",
        "a receipt of the client's choice: the same body gets the same answer again, another body 409",
    ),
    (
        "x-reef-tag-session",
        "the session that this exchange belongs to; other x-reef-tag-<name> headers are kept as tags",
    ),
    (
        "x-reef-capture",
        "`false` (0, no, off): answered, not recorded; any other word than these and `true` is refused",
    ),
    ("traceparent", "W3C trace context, continued"),
)
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "code": {"type": ["string", "null"]},
                "param": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "code", "param"],
        }
    },
    "required": ["error"],
}
_REFUSAL = {
    "description": "refused or failed",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
_KEPT = {
    "type": "object",
    "properties": {
        "agent_record_id": {"type": "string"},
        "scenario": {"type": "string"},
        "request_type": {"const": "report"},
    },
    "required": ["agent_record_id", "scenario", "request_type"],
}
_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "where tokens are configured; x-reef-scope says which scope is asked for",
    },
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
_MESSAGE = {
    "type": "object",
    "properties": {"role": {"type": "string"}, "content": {}},
    "required": ["role"],
    "additionalProperties": True,
}
_MESSAGES = {"type": "array", "items": _MESSAGE, "minItems": 1}
_FLAG = {
    "type": ["boolean", "integer", "string", "null"],
    "description": "true or false; engines also take 1, `true` and the like",
}
_NAME = {"type": ["string", "null"]}
_TEXTS = {"type": ["string", "array"]}
_TEXTS_OR_NULL = {"type": ["string", "array", "null"]}
_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "type": "object",
        "properties": {
            "model": _NAME,
            "messages": _MESSAGES,
            "stream": _FLAG,
        },
        "required": ["messages"],
        "additionalProperties": True,
    },
    "/v1/completions": {
        "type": "object",
        "properties": {
            "model": _NAME,
            "prompt": _TEXTS_OR_NULL,
            "prompt_embeds": _TEXTS_OR_NULL,
            "stream": _FLAG,
        },
        "anyOf": [
            {"required": [name], "properties": {name: _TEXTS}}
            for name in ("prompt", "prompt_embeds")
        ],
        "additionalProperties": True,
    },
    "/v1/embeddings": {
        "type": "object",
        "properties": {"model": _NAME, "input": _TEXTS_OR_NULL, "messages": _MESSAGES},
        "anyOf": [
            {"required": ["input"], "properties": {"input": _TEXTS}},
            {"required": ["messages"]},
        ],
        "additionalProperties": True,
    },
    "/reef/report": {
        "type": "object",
        "properties": {
            "references": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "uniqueItems": True,
            },
            "score": {"type": ["number", "null"]},
            "feedback": {"type": ["string", "object", "null"]},
            "metadata": {"type": ["object", "null"]},
            "scenario": {"type": ["string", "null"]},
            "agent_record_id": {"type": ["string", "null"]},
        },
        "required": ["references"],
        "additionalProperties": False,
    },
}
_SUMMARIES = {
    "/v1/chat/completions": "Answer a conversation with the scenario's head release, and record it",
    "/v1/completions": "Complete a text with the scenario's head release, and record it",
    "/v1/embeddings": "Embeddings, relayed to the serving node",
    "/reef/report": "Say how good earlier exchanges were",
}


def complete(
    document: dict[str, Any], scopes: Mapping[tuple[str, str], Scope | None]
) -> dict[str, Any]:
    """The document with the hot paths in it, and with what every operation refuses and asks for."""
    for path in _BODIES:
        document["paths"][path] = {"post": _hot_path(path)}
    hot = {("POST", path): "report" if path == "/reef/report" else "infer" for path in _BODIES}
    document["components"] = document.get("components", {}) | {"securitySchemes": _SCHEMES}
    document["components"].setdefault("schemas", {})["Error"] = _ERROR
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            scope = {**scopes, **hot}[method.upper(), path]
            operation["x-reef-scope"] = scope
            operation["security"] = [{"bearer": []}, {"apiKey": []}]
            operation["responses"].pop("422", None)  # FastAPI's own: here it is 400
            operation["responses"] |= {
                str(status): _REFUSAL
                for status in _statuses(path, method) - {int(s) for s in operation["responses"]}
            }
    for unused in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(unused, None)
    return document


def _statuses(path: str, method: str) -> set[int]:
    """What an operation may refuse with."""
    always = {400, 401, 403, 404, 429, 431, 500, 503}
    if path in _BODIES:
        return always | {405, 408, 409, 413, 414, 501, 502, 504}
    return always | ({408, 409, 413, 504} if method == "post" else set())


def _hot_path(path: str) -> dict[str, Any]:
    report = path == "/reef/report"
    names = [
        pair for pair in _HEADERS if not report or pair[0] in {"x-reef-scenario", "traceparent"}
    ]
    receipt = {
        "x-reef-agent-record-id": {
            "description": "the receipt: the record is durable",
            "schema": {"type": "string"},
        }
    }
    return {
        "summary": _SUMMARIES[path],
        "operationId": path.strip("/").replace("/", "_"),
        "tags": ["feedback" if report else "inference"],
        "parameters": [
            {
                "name": name,
                "in": "header",
                "required": False,
                "description": text,
                "schema": {"type": "string"},
            }
            for name, text in names
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _BODIES[path]}},
        },
        "responses": {
            "202" if report else "200": {
                "description": "kept"
                if report
                else "the serving node's answer; a stream where `stream` is true",
                "headers": receipt if path != "/v1/embeddings" else {},
                "content": {"application/json": {"schema": _KEPT if report else {"type": "object"}}}
                | ({} if report else {"text/event-stream": {"schema": _EVENT}}),
            }
        },
    }
