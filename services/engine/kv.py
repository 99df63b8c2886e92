"""Keys and values in dense rows: the batch is always rows 0..B-1, so attention reads slices and never copies."""

from typing import Any

import torch
from torch import Tensor


class KVRows:
    """Per layer two tensors [rows, kv_heads, length, head_dim], with a window that the running forward writes to.

    It is what transformers' attention layers call `update` on. Memory is zeroed lazily by the system: a page becomes
    resident when a token first reaches it. Zero, and never uninitialised, because a masked NaN is still a NaN.
    """

    def __init__(self, *, layers: int, rows: int, kv_heads: int, length: int, head_dim: int) -> None:
        shape = (rows, kv_heads, length, head_dim)
        self.keys = [torch.zeros(shape) for _ in range(layers)]
        self.values = [torch.zeros(shape) for _ in range(layers)]
        self._rows: Tensor | slice = slice(0, 0)
        self._at: Tensor | slice = slice(0, 0)
        self._batch = 0
        self._length = 0

    def window_decode(self, rows: Tensor, positions: Tensor, length: int) -> None:
        """The next forward has one token per row; row b's goes to `positions[b]`. rows, positions: int64 [B]."""
        self._rows, self._at, self._batch, self._length = rows, positions, rows.shape[0], length

    def window_prefill(self, start: int, end: int) -> None:
        """The next forward has tokens `start`..`end` of the sequence in row 0."""
        self._rows, self._at, self._batch, self._length = slice(0, 1), slice(start, end), 1, end

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store key and value [B, kv_heads, q, head_dim]; give all keys and values of the window."""
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        if isinstance(self._at, slice):
            keys[self._rows, :, self._at] = key
            values[self._rows, :, self._at] = value
        else:
            keys[self._rows, :, self._at] = key[:, :, 0]
            values[self._rows, :, self._at] = value[:, :, 0]
        return keys[: self._batch, :, : self._length], values[: self._batch, :, : self._length]

    def copy_row(self, source: "KVRows", from_row: int, to_row: int, length: int) -> None:
        """Copy the first `length` tokens of a row, also between two stores."""
        for mine, theirs in ((self.keys, source.keys), (self.values, source.values)):
            for target, origin in zip(mine, theirs, strict=True):
                target[to_row, :, :length] = origin[from_row, :, :length]
