"""Custom tools of Responses: in a chat each is a function of one text, `input`."""

from services.gateway.domain.dialects.base import Json, given_of
from services.gateway.domain.dialects.growing import Call

INPUT = "input"
_PARAMETERS: Json = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}


def function_of(tool: Json) -> Json:
    """Return a custom tool as a function. Nothing holds the model to its grammar: it is told."""
    about, form = str(tool.get("description") or ""), tool.get("format")
    if isinstance(form, dict) and form.get("type") == "grammar":
        rules = f"{form.get('syntax')} grammar:\n{form.get('definition')}"
        about = f"{about}\n\nThe input follows this {rules}".strip()
    function = {"type": "function", "name": tool.get("name"), "parameters": _PARAMETERS}
    return {**function, **({"description": about} if about else {})}


def input_of(call: Call) -> str:
    """Return the text of a call; the arguments as they are if they hold no such text."""
    text = given_of(call.arguments or "{}").get(INPUT)
    return text if isinstance(text, str) else call.arguments
