"""`/docs`: the routes as one page of HTML without scripts, drawn from the OpenAPI document, so that nothing is loaded from elsewhere."""

from collections.abc import Mapping
from html import escape
from typing import Any

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2730;background:#fff}
h2{margin:2.2rem 0 .6rem;font-size:1.15rem}details{border:1px solid #d5dde3;border-radius:6px;margin:.35rem 0;padding:.4rem .8rem}
summary{cursor:pointer}code{font-size:.93em}b.m{display:inline-block;width:4rem;color:#0b6e8a}i{color:#5b6b76;font-style:normal}
table{border-collapse:collapse;margin:.5rem 0}td{padding:.15rem .9rem .15rem 0;vertical-align:top}
pre{background:#f3f6f8;padding:.6rem;overflow:auto;border-radius:6px}
@media(prefers-color-scheme:dark){body{color:#dbe4ea;background:#10181d}details{border-color:#32424d}pre{background:#1a252c}b.m{color:#5cc3de}i{color:#93a5b1}}
"""
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def docs_page(document: Mapping[str, Any]) -> str:
    """The page."""
    groups: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups.setdefault((operation.get("tags") or ["other"])[0], []).append(
                _operation(method, path, operation, document)
            )
    title = escape(document["info"]["title"])
    body = "".join(f"<h2>{escape(tag)}</h2>{''.join(rows)}" for tag, rows in groups.items())
    text = escape(document["info"].get("description", ""))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"
        f'<p>{text}</p><p>For programs: <a href="openapi.json">openapi.json</a>.</p>{body}</body></html>'
    )


def _operation(
    method: str, path: str, operation: Mapping[str, Any], document: Mapping[str, Any]
) -> str:
    scope = operation.get("x-reef-scope")
    needs = f"scope <code>{escape(scope)}</code>" if scope else "no token"
    head = f'<b class="m">{escape(method.upper())}</b><code>{escape(path)}</code> <i>{escape(operation.get("summary", ""))}</i>'
    return (
        f"<details><summary>{head}</summary><p>{escape(operation.get('description', ''))} Asks for {needs}.</p>"
        f"{_parameters(operation.get('parameters', ()))}{_body(operation, document)}{_responses(operation['responses'])}</details>"
    )


def _parameters(parameters: Any) -> str:
    required = {True: "required", False: ""}
    return _table(
        [
            (
                f"{row['name']} ({row['in']})",
                row.get("description") or required[row.get("required", False)],
            )
            for row in parameters
        ]
    )


def _body(operation: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return ""
    schema = content["schema"]
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    required = set(schema.get("required", ()))
    rows = [
        (
            name,
            f"{_kind(row)}{', required' if name in required else ''} {row.get('description', '')}",
        )
        for name, row in schema.get("properties", {}).items()
    ]
    return "<p>Body (JSON):</p>" + _table(rows)


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type", "anything")
    return kind if isinstance(kind, str) else " or ".join(kind)


def _responses(responses: Mapping[str, Any]) -> str:
    return _table([(status, row.get("description", "")) for status, row in responses.items()])


def _table(rows: list[tuple[str, str]]) -> str:
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(text)}</td></tr>"
        for name, text in rows
    )
    return f"<table>{cells}</table>" if rows else ""
