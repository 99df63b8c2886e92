"""Token ids of a teacher's prompt, as the engine would make them."""

# Only prompts are tokenised here. Sampled tokens have their ids from the engine.

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reefcommon.errors import Poison


class PromptTokenizer:
    """The base model's tokenizer and chat template. It is loaded at its first use."""

    def __init__(self, model_path: Path) -> None:
        self._path = model_path
        self._loaded: Any = None

    def prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        """Return the ids of a conversation that the model shall answer.

        Raises:
            Poison: the template fails on these messages.
        """
        try:
            text: str = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=True,
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
        end = self._tokenizer.eos_token_id
        return (*self.text(text), *([int(end)] if end is not None else []))

    @property
    def _tokenizer(self) -> Any:
        if self._loaded is None:
            from transformers import AutoTokenizer

            self._loaded = AutoTokenizer.from_pretrained(self._path, local_files_only=True)
        return self._loaded
