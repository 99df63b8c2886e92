"""The model's tokenizer and chat template. Safe to use from several threads."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, meta

from services.engine.domain.errors import InvalidRequestError


class EngineTokenizer:
    """A transformers tokenizer."""

    # It decodes with the Rust core directly, since it does so for every token.

    def __init__(self, path: Path) -> None:
        from transformers import AutoTokenizer
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        self._hf: Any = AutoTokenizer.from_pretrained(path, local_files_only=True)
        self._core: Any = self._hf.backend_tokenizer
        self._byte_level = type(self._core.decoder).__name__ == "ByteLevel"
        # Byte-level BPE writes each byte as a letter.
        letters: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]
        self._byte_of = {letter: byte for byte, letter in letters.items()}
        own = {*_SERVER_OPTIONS.split(), *self._hf.special_tokens_map}
        self._options = _template_variables(self._hf.chat_template) - own
        # Letters. A text of n bytes has at least n / longest_token tokens where each letter is a
        # byte.
        self.longest_token = max(map(len, self._core.get_vocab(with_added_tokens=True)))

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of a text; special tokens in the text become their ids."""
        ids: list[int] = self._core.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text: str = self._core.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_text(self, token_id: int) -> str:
        """A token's text; a part of a character becomes a replacement character."""
        text = self.decode([token_id], skip_special_tokens=False)
        if self._byte_level:
            return text
        # Other decoders drop the space before the first token.
        return self.decode([token_id, token_id], skip_special_tokens=False)[len(text) :]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token, possibly a part of a character."""
        name = self._core.id_to_token(token_id) or ""
        if self._byte_level and self._byte_of.keys() >= set(name):
            return bytes(self._byte_of[letter] for letter in name)
        return self.token_text(token_id).encode()

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raises `InvalidRequestError` for a template option that clients may not give."""
        # Only a plain value of a variable that the model's own template reads. apply_chat_template
        # has keywords of its own (`chat_template`, `tokenize`) that would run a client's program.
        for name, value in options.items():
            if name not in self._options:
                known = ", ".join(sorted(self._options)) or "none"
                raise _wrong_option(
                    f"{name!r} is no option of this model's chat template (options: {known})"
                )
            if not isinstance(value, str | bool | int | float | None) or len(str(value)) > 1000:
                form = "a string of at most 1000 characters, a number, a boolean or null"
                raise _wrong_option(f"{name!r} must be {form}")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
    ) -> str:
        """The prompt text of a conversation. Raises `InvalidRequestError` if the template fails."""
        try:
            text: str = self._hf.apply_chat_template(
                list(messages), tools=list(tools) if tools else None, tokenize=False, **options
            )
        except Exception as error:  # a template is a program: it may raise anything
            raise InvalidRequestError(
                "messages", f"the chat template cannot render these messages: {error}"
            ) from error
        return text


def _wrong_option(words: str) -> InvalidRequestError:
    return InvalidRequestError("chat_template_kwargs", f"chat_template_kwargs: {words}")


# Variables that the server itself gives to a template.
_SERVER_OPTIONS = (
    "messages tools documents tokenize chat_template strftime_now raise_exception "
    "add_generation_prompt continue_final_message"
)


def _template_variables(template: str | Mapping[str, str] | None) -> set[str]:
    sources = [*template.values()] if isinstance(template, Mapping) else [template or ""]
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])  # noqa: S701  parsed only
    names: set[str] = set()
    for source in sources:
        # transformers' own tag, which marks answers for training.
        plain = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", source)
        names |= meta.find_undeclared_variables(environment.parse(plain))
    return names - set(environment.globals)
