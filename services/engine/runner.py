"""Forward passes of the model."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from services.engine.breaks import LayerBreaks
from services.engine.kv import KVRows
from services.engine.lora import Adapter, AdapterGroup, LoraLayers

PROMPTS_AT_ONCE = 8
Ids = Sequence[int]
Adapters = Sequence[Adapter | None]


class ModelRunner:
    """Owns the weights and the adapters' hooks. Only the loop's thread uses it."""

    def __init__(self, model: Any, *, length: int) -> None:
        config = model.config
        if length > config.max_position_embeddings:
            longest = config.max_position_embeddings
            raise ValueError(f"max_model_len ({length}) is above the model's {longest}")
        # A model may have several end-of-sequence ids, or none.
        eos = model.generation_config.eos_token_id
        self.eos_ids = frozenset([eos] if isinstance(eos, int) else eos or ())
        self._sizes = {
            "layers": config.num_hidden_layers,
            "heads": config.num_key_value_heads,
            "head_dim": getattr(config, "head_dim", None)
            or config.hidden_size // config.num_attention_heads,
        }
        self._length = length
        self.model: nn.Module = model
        self.vocab_size = int(config.vocab_size)
        self.lora = LoraLayers(model)
        self._breaks = LayerBreaks(model)
        self._columns = torch.arange(length)
        self._probe_rows = KVRows(rows=1, length=1, **self._sizes)

    def new_rows(self, rows: int) -> KVRows:
        """Empty key/value rows of this model."""
        return KVRows(rows=rows, length=self._length, **self._sizes)

    def probe(self) -> None:
        """A forward of a single token. Raises if the model cannot step."""
        self.prefill([0], 0, None, self._probe_rows, all_logits=False)

    def interrupted_by(self, action: Callable[[], None]) -> AbstractContextManager[None]:
        """Run `action` before each layer of the forwards inside; it may use other rows."""

        def keeping_adapters() -> None:
            groups = self.lora.groups
            action()
            self.lora.use(groups)

        return self._breaks.running(keeping_adapters)

    @torch.inference_mode()
    def prefill(
        self, ids: Ids, start: int, adapter: Adapter | None, kv: KVRows, *, all_logits: bool
    ) -> Tensor:
        """Read prompt tokens from `start` on into row 0. Logits [T, V], or [1, V] of the last."""
        end = start + len(ids)
        positions = self._columns[start:end]
        mask = _additive(self._columns[:end] > positions.unsqueeze(1))
        kv.window_prefill(start, end)
        self.lora.use((AdapterGroup(adapter, None),) if adapter else ())
        keep = 0 if all_logits else 1
        return self._forward([list(ids)], positions.unsqueeze(0), mask[None, None], kv, keep)[0]

    @torch.inference_mode()
    def prefill_whole(self, prompts: Sequence[Ids], adapters: Adapters, kv: KVRows) -> Tensor:
        """Read prompts into the first rows. Logits [B, V] of the last tokens."""
        # Padded on the right: the causal mask hides the padding from every real token.
        length = max(map(len, prompts))
        positions = self._columns[:length]
        mask = _additive(positions > positions.unsqueeze(1))
        kv.window_prefill(0, length, len(prompts))
        self.lora.use(_adapter_groups(adapters))
        lasts = sorted({len(prompt) - 1 for prompt in prompts})
        padded = [[*prompt, *[0] * (length - len(prompt))] for prompt in prompts]
        at = positions.unsqueeze(0).expand(len(prompts), -1)
        logits = self._forward(padded, at, mask[None, None], kv, torch.tensor(lasts))
        places = [lasts.index(len(prompt) - 1) for prompt in prompts]
        return logits[torch.arange(len(prompts)), torch.tensor(places)]

    @torch.inference_mode()
    def decode(
        self, ids: Ids, positions: Ids, adapters: Adapters, kv: KVRows, first: int = 0
    ) -> Tensor:
        """A token for each row from `first` on, at its position. Logits [B, V]."""
        length = max(positions) + 1
        at = torch.tensor(positions)
        mask = _additive(self._columns[:length] > at.unsqueeze(1))
        kv.window_decode(positions, first)
        self.lora.use(_adapter_groups(adapters))
        tokens = [[i] for i in ids]
        return self._forward(tokens, at.unsqueeze(1), mask[:, None, None], kv, 1)[:, 0]

    def _forward(
        self, ids: list[list[int]], positions: Tensor, mask: Tensor, kv: KVRows, keep: int | Tensor
    ) -> Tensor:
        # The cache goes by position: its keyword has another name in transformers 5.19 and 5.24.
        tokens = torch.tensor(ids)
        output = self.model(tokens, mask, positions, kv, use_cache=True, logits_to_keep=keep)
        logits: Tensor = output.logits
        return logits


def _additive(hidden: Tensor) -> Tensor:
    # Added to the scores. Each layer would convert a mask of booleans again.
    return torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)


def _adapter_groups(adapters: Adapters) -> tuple[AdapterGroup, ...]:
    members: dict[int, tuple[Adapter, list[int]]] = {}
    for row, adapter in enumerate(adapters):
        if adapter is not None:
            members.setdefault(id(adapter), (adapter, []))[1].append(row)
    return tuple(
        AdapterGroup(adapter, None if len(rows) == len(adapters) else torch.tensor(rows))
        for adapter, rows in members.values()
    )


def load_model(path: Path, threads: int) -> Any:
    """A transformers causal language model in float32 on the CPU."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
    )
    model.requires_grad_(requires_grad=False)
    for weight in model.parameters():
        weight.data = weight.data.clone()  # it may lie in the mapped file, which can be rewritten
    return model.train(mode=False)
