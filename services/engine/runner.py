"""Forward passes of the model: prompt chunks one sequence at a time, decode steps for the whole batch at once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from services.engine.kv import KVRows
from services.engine.lora import Adapter, AdapterGroup, LoraLayers

PROMPTS_AT_ONCE = 8


class ModelRunner:
    """Owns the weights, the key/value rows and the adapters' hooks. Used by the loop's thread alone."""

    def __init__(self, model: Any, *, rows: int, length: int) -> None:
        config = model.config
        sizes = {
            "layers": config.num_hidden_layers,
            "kv_heads": config.num_key_value_heads,
            "length": length,
            "head_dim": getattr(config, "head_dim", None)
            or config.hidden_size // config.num_attention_heads,
        }
        self.model: nn.Module = model
        self.vocab_size = int(config.vocab_size)
        self.lora = LoraLayers(model)
        self.batch = KVRows(rows=rows, **sizes)
        self.scratch = KVRows(rows=PROMPTS_AT_ONCE, **sizes)
        """Where prompts are read before their choices join the batch."""
        self._columns = torch.arange(length)
        self._groups: tuple[AdapterGroup, ...] = ()
        self._grouped_for: list[Adapter | None] = []

    @torch.inference_mode()
    def prefill(
        self, ids: Sequence[int], start: int, adapter: Adapter | None, *, all_logits: bool
    ) -> Tensor:
        """Read prompt tokens `start`.. into the scratch row. Logits [T or 1, V] (the last token's, or all)."""
        end = start + len(ids)
        positions = self._columns[start:end]
        mask = _additive(self._columns[:end] > positions.unsqueeze(1))
        self.scratch.window_prefill(start, end)
        self.lora.use((AdapterGroup(adapter, None),) if adapter else ())
        return self._forward(
            [list(ids)],
            positions.unsqueeze(0),
            mask[None, None],
            self.scratch,
            0 if all_logits else 1,
        )[0]

    @torch.inference_mode()
    def prefill_whole(
        self, prompts: Sequence[Sequence[int]], adapters: Sequence[Adapter | None]
    ) -> Tensor:
        """Read at most PROMPTS_AT_ONCE prompts into the scratch rows, in order. Logits [B, V] of each one's last token.

        They are padded on the right, where a causal mask keeps the padding out of every token that counts.
        """
        length = max(map(len, prompts))
        positions = self._columns[:length]
        mask = _additive(positions > positions.unsqueeze(1))
        self.scratch.window_prefill(0, length, len(prompts))
        self.lora.use(_grouped(list(adapters)))
        lasts = sorted({len(prompt) - 1 for prompt in prompts})
        padded = [[*prompt, *[0] * (length - len(prompt))] for prompt in prompts]
        at = positions.unsqueeze(0).expand(len(prompts), -1)
        logits = self._forward(padded, at, mask[None, None], self.scratch, torch.tensor(lasts))
        return logits[
            torch.arange(len(prompts)),
            torch.tensor([lasts.index(len(prompt) - 1) for prompt in prompts]),
        ]

    @torch.inference_mode()
    def decode(
        self, ids: Sequence[int], positions: Sequence[int], adapters: Sequence[Adapter | None]
    ) -> Tensor:
        """One token for each of rows 0..B-1, at its position. Logits [B, V]."""
        length = max(positions) + 1
        at = torch.tensor(positions)
        mask = _additive(self._columns[:length] > at.unsqueeze(1))
        self.batch.window_decode(positions)
        self.lora.use(self._group(adapters))
        return self._forward(
            [[i] for i in ids], at.unsqueeze(1), mask[:, None, None], self.batch, 1
        )[:, 0]

    @torch.inference_mode()
    def join(self, row: int, length: int, source: int = 0) -> None:
        """Copy the first `length` tokens of a scratch row into a row of the batch."""
        self.batch.copy_row(self.scratch, source, row, length)

    @torch.inference_mode()
    def move(self, source: int, target: int, length: int) -> None:
        """Move a row of the batch."""
        self.batch.copy_row(self.batch, source, target, length)

    def idle(self) -> None:
        """No row is in use: let go of adapters and of grown memory."""
        self._grouped_for, self._groups = [], ()
        self.lora.rest()
        self.batch.shrink()

    def _forward(
        self, ids: list[list[int]], positions: Tensor, mask: Tensor, kv: KVRows, keep: int | Tensor
    ) -> Tensor:
        # The cache goes by position: its keyword changed its name between transformers 5.19 and 5.24.
        output = self.model(
            torch.tensor(ids), mask, positions, kv, use_cache=True, logits_to_keep=keep
        )
        logits: Tensor = output.logits
        return logits

    def _group(self, adapters: Sequence[Adapter | None]) -> tuple[AdapterGroup, ...]:
        wanted = list(adapters)
        if wanted != self._grouped_for:
            self._grouped_for, self._groups = wanted, _grouped(wanted)
        return self._groups


def _additive(hidden: Tensor) -> Tensor:
    """A mask as attention adds it. Given as booleans, each layer would convert it anew."""
    return torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)


def _grouped(adapters: list[Adapter | None]) -> tuple[AdapterGroup, ...]:
    members: dict[int, list[int]] = {}
    by_id: dict[int, Adapter] = {}
    for row, adapter in enumerate(adapters):
        if adapter is not None:
            members.setdefault(id(adapter), []).append(row)
            by_id[id(adapter)] = adapter
    return tuple(
        AdapterGroup(by_id[key], None if len(rows) == len(adapters) else torch.tensor(rows))
        for key, rows in members.items()
    )


def load_model(path: Path, threads: int) -> Any:
    """A transformers causal language model in float32 on the CPU, ready for inference."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    quiet: Any = transformers_logging.disable_progress_bar
    quiet()
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
    )
    model.requires_grad_(requires_grad=False)
    return model.train(mode=False)
