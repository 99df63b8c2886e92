"""The hot paths in the OpenAPI document: they are answered outside of FastAPI, so it cannot describe them itself."""

from typing import Any

_HEADERS: tuple[tuple[str, str], ...] = (
    ("x-reef-scenario", "the scenario whose head release answers; absent: `default`"),
    ("x-reef-release-id", "answer with this release; 409 if it is not served"),
    ("x-reef-agent-record-id", "a receipt of the client's choice: the same body gets the same answer once, another body 409"),
    ("x-reef-tag-session", "the session that this exchange belongs to; other x-reef-tag-<name> headers are kept as tags"),
    ("x-reef-capture", "`false`: answered, not recorded"),
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
_MESSAGE = {"type": "object", "properties": {"role": {"type": "string"}, "content": {}}, "required": ["role"], "additionalProperties": True}
_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "type": "object",
        "properties": {
            "model": {"type": "string"},
            "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
            "stream": {"type": "boolean"},
        },
        "required": ["messages"],
        "additionalProperties": True,
    },
    "/v1/completions": {
        "type": "object",
        "properties": {"model": {"type": "string"}, "prompt": {"type": ["string", "array"]}, "stream": {"type": "boolean"}},
        "required": ["prompt"],
        "additionalProperties": True,
    },
    "/v1/embeddings": {
        "type": "object",
        "properties": {"model": {"type": "string"}, "input": {}},
        "required": ["input"],
        "additionalProperties": True,
    },
    "/reef/report": {
        "type": "object",
        "properties": {
            "references": {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True},
            "score": {"type": ["number", "null"]},
            "feedback": {"type": ["string", "object", "null"]},
            "metadata": {"type": ["object", "null"]},
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


def add_hot_paths(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the hot paths in it."""
    refusal = {"description": "refused or failed", "content": {"application/json": {"schema": _ERROR}}}
    for path, schema in _BODIES.items():
        report = path == "/reef/report"
        names = [pair for pair in _HEADERS if not report or pair[0] in {"x-reef-scenario", "traceparent"}]
        document["paths"][path] = {
            "post": {
                "summary": _SUMMARIES[path],
                "operationId": path.strip("/").replace("/", "_"),
                "tags": ["feedback" if report else "inference"],
                "parameters": [
                    {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
                    for name, text in names
                ],
                "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
                "responses": {
                    "202" if report else "200": {
                        "description": "kept" if report else "the serving node's answer; a stream where `stream` is true",
                        "headers": {
                            "x-reef-agent-record-id": {"description": "the receipt: the record is durable", "schema": {"type": "string"}}
                        },
                    },
                    **{str(status): refusal for status in (400, 401, 403, 404, 409, 413, 429, 502, 503, 504)},
                },
            }
        }
    return document
