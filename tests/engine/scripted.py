"""A model that says what a test tells it to: for stop strings, tool calls and streams with a known text."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn


class ScriptedModel(nn.Module):
    """Every answer is `script` (token ids), then EOS. One request at a time."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoConfig

        super().__init__()
        self.config = AutoConfig.from_pretrained(path)
        self.generation_config = SimpleNamespace(eos_token_id=self.config.eos_token_id)
        self.weight = nn.Parameter(torch.zeros(1))
        self.script: list[int] = []
        self._start = 0
        self.delay_s = 0.0

    def get_output_embeddings(self) -> None:
        """It has neither layers nor an output layer."""

    def forward(
        self, ids: torch.Tensor, _mask: torch.Tensor, positions: torch.Tensor, _kv: Any, **_: Any
    ) -> Any:
        if positions.shape[1] > 1:
            self._start = int(positions[0, -1])
        logits = torch.zeros(*positions.shape, self.config.vocab_size)
        for row, at in enumerate(positions[:, -1].tolist()):
            step = at - self._start
            logits[
                row, -1, self.script[step] if step < len(self.script) else self.config.eos_token_id
            ] = 100.0
        return SimpleNamespace(logits=logits)
