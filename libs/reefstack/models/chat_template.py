"""The ChatML template with tools, shared by the models that are made here."""

import json
from pathlib import Path

SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def chat_template(default_system: str) -> str:
    """The Jinja source. `default_system` is used if a conversation has no system message.

    If it is empty there is no system block then. Without tools the template renders as SmolLM2's own
    one. Calls and their answers are `<tool_call>` and `<tool_response>` blocks, as in Hermes and Qwen.
    """
    body = Path(__file__).with_name("chatml_tools.jinja").read_text(encoding="utf-8")
    # A JSON string literal is a Jinja string literal too.
    return "{%- set default_system = " + json.dumps(default_system) + " -%}\n" + body
