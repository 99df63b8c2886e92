"""Model preparation: the directories, their templates, and that a made directory is used again."""

import threading
import time

import pytest

from reefstack.models import UnknownModelError, prepare
from reefstack.models.chat_template import SMOLLM2_SYSTEM, chat_template

ORIGINAL = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    + SMOLLM2_SYSTEM
    + "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
    }
]


def render(source, messages, **names):
    # The way transformers compiles a chat template.
    import json

    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(source).render(messages=messages, **names)


@pytest.mark.parametrize("generation", [True, False])
@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": " hi\n"}],
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "y "},
        ],
        [{"role": "system", "content": ""}, {"role": "user", "content": "x"}],
    ],
)
def test_without_tools_the_template_is_smollm2s_own(messages, generation):
    ours = render(chat_template(SMOLLM2_SYSTEM), messages, add_generation_prompt=generation)
    assert ours == render(ORIGINAL, messages, add_generation_prompt=generation)


def test_tools_calls_and_answers_are_rendered():
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "sun"},
        {"role": "tool", "content": "rain"},
    ]
    text = render(chat_template(""), messages, tools=TOOLS, add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert '\n{"type": "function", "function": {"name": "weather"' in text
    block = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
    assert f"<|im_start|>assistant\n{block}\n{block}<|im_end|>" in text
    answers = "<tool_response>\nsun\n</tool_response>\n<tool_response>\nrain\n</tool_response>"
    assert f"<|im_start|>user\n{answers}<|im_end|>\n<|im_start|>assistant\n" in text


def test_tiny_is_the_same_every_time_and_made_once(tmp_path):
    first, second = prepare("tiny", tmp_path / "a"), prepare("tiny", tmp_path / "b")
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()
    assert (first / "tokenizer.json").read_bytes() == (second / "tokenizer.json").read_bytes()
    made, started = (first / "config.json").stat().st_mtime_ns, time.monotonic()
    assert prepare("tiny", tmp_path / "a") == first
    assert time.monotonic() - started < 0.1
    assert (first / "config.json").stat().st_mtime_ns == made


def test_two_at_once_leave_one_whole_directory(tmp_path):
    threads = [threading.Thread(target=prepare, args=("tiny", tmp_path)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-v1"]


def test_a_directory_names_itself_and_anything_else_is_refused(tmp_path):
    made = prepare("tiny", tmp_path)
    assert prepare(made) == made
    assert prepare(str(made)) == made
    with pytest.raises(UnknownModelError, match="smollm3"):
        prepare("smollm3", tmp_path)


def test_progress_rises_to_one(tmp_path):
    shares = []
    prepare("tiny", tmp_path, lambda _what, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
