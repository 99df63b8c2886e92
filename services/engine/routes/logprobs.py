"""Log-probabilities in OpenAI's and vLLM's shapes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from services.engine.domain.outputs import TokenLogprob
from services.engine.tokenizer import EngineTokenizer


@dataclass(frozen=True)
class LogprobFormat:
    """`as_ids` writes a token as `token_id:<id>`, vLLM's `return_tokens_as_token_ids`."""

    # Parts of a character have the same text, so that names by text are not unique.

    tokenizer: EngineTokenizer
    as_ids: bool = False

    def chat(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """`{"content": [{token, logprob, bytes, top_logprobs}]}`."""
        content = []
        for token in tokens:
            top = [self._entry(token_id, value) for token_id, value in token.top]
            content.append(self._entry(token.token_id, token.logprob) | {"top_logprobs": top})
        return {"content": content}

    def generate(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The chat shape with each token's id and rank."""
        shape = self.chat(tokens)
        for entry, token in zip(shape["content"], tokens, strict=True):
            entry |= {"token_id": token.token_id, "rank": token.rank}
        return shape

    def completion(self, tokens: Sequence[TokenLogprob | int], offset: int = 0) -> dict[str, Any]:
        """Parallel lists; a bare id has null for its log-probability. `offset` in characters."""
        ids = [token if isinstance(token, int) else token.token_id for token in tokens]
        scored = [None if isinstance(token, int) else token for token in tokens]
        lengths = (len(self.tokenizer.token_text(token_id)) for token_id in ids)
        return {
            "text_offset": [*accumulate(lengths, initial=offset)][:-1],
            "token_logprobs": [token and token.logprob for token in scored],
            "tokens": [self._name(token_id) for token_id in ids],
            "top_logprobs": [token and self._top(token) for token in scored],
        }

    def prompt(self, scores: Sequence[TokenLogprob]) -> list[dict[int, Any] | None]:
        """vLLM's `prompt_logprobs`: null for the first token, then a map from id to its entry."""
        return [None, *(self._prompt_entry(token) for token in scores)]

    def _prompt_entry(self, token: TokenLogprob) -> dict[int, Any]:
        entries = [(i, value, rank) for rank, (i, value) in enumerate(token.top, start=1)]
        entries.append((token.token_id, token.logprob, token.rank))
        text = self.tokenizer.token_text
        return {i: {"logprob": v, "rank": r, "decoded_token": text(i)} for i, v, r in entries}

    def _top(self, token: TokenLogprob) -> dict[str, float]:
        best = {self._name(token_id): value for token_id, value in token.top}
        # OpenAI puts the sampled token in as well, if it is not among the best.
        return best | {self._name(token.token_id): token.logprob}

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._name(token_id),
            "logprob": logprob,
            "bytes": list(self.tokenizer.token_bytes(token_id)),
        }

    def _name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self.as_ids else self.tokenizer.token_text(token_id)
