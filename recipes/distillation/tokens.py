"""Token ids of a teacher's prompt, as the engine would make them."""

# Only prompts are tokenised here. Sampled tokens have their ids from the engine.

import contextlib
import inspect
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from reefcommon.conversation import mappings, role_of
from reefcommon.errors import Poison
from reefcommon.events import Unit

OPTIONS = "reef_template_options"
"""Metadata of a unit: the `chat_template_kwargs` of its request."""
_MARK = "answer"


class PromptTokenizer:
    """The base model's tokenizer and chat template. It is loaded at its first use."""

    def __init__(self, model_path: Path) -> None:
        self._path = model_path

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], unit: Unit | None = None
    ) -> tuple[int, ...]:
        """Return the ids of a conversation that the model shall answer, in place of the unit's own.

        Raises:
            Poison: the template fails on these messages.
        """
        tools = [dict(tool) for tool in unit.tools] if unit else []
        stated = unit.metadata.get(OPTIONS) if unit else None
        # A client may set the template's variables, and no argument of the function.
        options = stated if isinstance(stated, Mapping) else {}
        free = {name: value for name, value in options.items() if name not in self._arguments}
        try:
            text: str = self._tokenizer.apply_chat_template(
                [template_form(message) for message in messages],
                tools=tools or None,
                tokenize=False,
                add_generation_prompt=True,
                **free,
            )
        except Exception as error:  # a template is a program: it may raise anything
            words = f"the chat template cannot render the teacher's messages: {error}"
            raise Poison(words) from error
        return self.text(text)

    def text(self, text: str) -> tuple[int, ...]:
        ids = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return tuple(map(int, ids))

    def answer(self, text: str) -> tuple[int, ...]:
        """Return the ids of an answer that nobody sampled, with the end of a turn."""
        return (*self.text(text), *self._end_of_turn)

    @cached_property
    def _end_of_turn(self) -> tuple[int, ...]:
        # The token that the template puts behind an answer, as a sampled answer has it. Gemma's is
        # not its `eos_token`, which ends a text.
        tokenizer, shown = self._tokenizer, ""
        turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _MARK}]
        with contextlib.suppress(Exception):  # a template is a program: it may raise anything
            shown = tokenizer.apply_chat_template(turn, tokenize=False)
        special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        behind = shown.rpartition(_MARK)[2] if _MARK in shown else ""
        ends = [token for token in self.text(behind) if token in special]
        if not ends and tokenizer.eos_token_id is not None:
            ends = [int(tokenizer.eos_token_id)]
        return tuple(ends[:1])

    @cached_property
    def _arguments(self) -> frozenset[str]:
        return frozenset(inspect.signature(self._tokenizer.apply_chat_template).parameters)

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self._path, local_files_only=True)


def template_form(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return an OpenAI message in the form that chat templates take, as the engine does."""
    # Text parts joined, and the arguments of a call as an object: a string would be quoted twice.
    plain = {name: value for name, value in message.items() if value is not None}
    content = message.get("content")
    parts = "".join(str(part.get("text", "")) for part in mappings(content))
    plain |= {"role": role_of(message), "content": content if isinstance(content, str) else parts}
    if calls := [_call(call) for call in mappings(message.get("tool_calls"))]:
        plain["tool_calls"] = calls
    return plain


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):  # cut off: it stays a text
            arguments = json.loads(arguments)
    return {**call, "function": {**function, "arguments": arguments}}
