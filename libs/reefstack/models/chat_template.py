"""The ChatML template with tools, shared by the models that are made here."""

import json
from pathlib import Path

SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def chat_template(default_system: str) -> str:
    """Jinja source. `default_system` stands in where a conversation has no system message; empty means no block at all.

    Without tools it renders what SmolLM2's own template renders. Tools go into the system block, calls and answers are
    `<tool_call>` and `<tool_response>` blocks as in Hermes and Qwen models.
    """
    body = Path(__file__).with_name("chatml_tools.jinja").read_text(encoding="utf-8")
    # A JSON string literal is a Jinja string literal too.
    return "{%- set default_system = " + json.dumps(default_system) + " -%}\n" + body
