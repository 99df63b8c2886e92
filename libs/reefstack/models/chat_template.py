"""The ChatML template with tools."""

import json
from pathlib import Path

SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def chat_template(default_system: str) -> str:
    """The Jinja source. `default_system`: used if a conversation has no system message."""
    # Without tools it renders as SmolLM2's own. Calls and answers are as in Hermes and Qwen models.
    body = Path(__file__).with_name("chatml_tools.jinja").read_text(encoding="utf-8")
    # A JSON string literal is a Jinja string literal too.
    return "{%- set default_system = " + json.dumps(default_system) + " -%}\n" + body
