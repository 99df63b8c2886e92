"""Keys and values in dense rows."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_FIRST_ROWS = 1
_FIRST_LENGTH = 256
_KEEP_BYTES = 1 << 29


class KVRows:
    """A tensor [keys and values, rows, kv_heads, length, head_dim] per layer, and the next window.

    transformers' attention layers call `update`. Rows and length double up to the limits.
    """

    # Memory grows on demand: with huge pages, zeroed memory becomes resident as soon as it is read,
    # and the limits are gigabytes. Zeroed, not uninitialised: a masked NaN is still a NaN.

    def __init__(self, *, layers: int, rows: int, heads: int, length: int, head_dim: int) -> None:
        self._limits = (rows, length)
        self._inner = (heads, head_dim)
        self._layers = layers
        self._allocate()
        self._rows: Tensor | slice = slice(0, 0)
        self._at: Tensor | slice = slice(0, 0)
        self._span = slice(0, 0)
        self._length = 0

    @property
    def capacity(self) -> tuple[int, int]:
        return self.stored[0].shape[1], self.stored[0].shape[3]

    def window_decode(self, positions: Sequence[int], first: int = 0) -> None:
        """The next forward has a token for each row from `first` on, at `positions`."""
        self._span = slice(first, first + len(positions))
        self._length = max(positions) + 1
        self._reserve(self._span.stop, self._length)
        # Rows of equal length are written as a slice, at a tenth of the cost of a scatter.
        if min(positions) + 1 == self._length:
            self._rows, self._at = self._span, slice(positions[0], self._length)
        else:
            self._rows = torch.arange(self._span.start, self._span.stop)
            self._at = torch.tensor(positions)

    def window_prefill(self, start: int, end: int, count: int = 1) -> None:
        """The next forward has tokens `start`..`end` of the sequences in rows 0..count-1."""
        self._reserve(count, end)
        self._rows = self._span = slice(0, count)
        self._at, self._length = slice(start, end), end

    def update(
        self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store key and value [B, kv_heads, q, head_dim]; return the whole window."""
        keys, values = self.stored[layer_idx]
        if not isinstance(self._at, slice):  # a token for each row
            key, value = key[:, :, 0], value[:, :, 0]
        keys[self._rows, :, self._at] = key
        values[self._rows, :, self._at] = value
        return keys[self._span, :, : self._length], values[self._span, :, : self._length]

    @torch.inference_mode()
    def copy_row(self, source: "KVRows", from_row: int, to_row: int, length: int) -> None:
        """Copy the first `length` tokens of a row, also from another store."""
        self._reserve(to_row + 1, length)
        for target, origin in zip(self.stored, source.stored, strict=True):
            target[:, to_row, :, :length] = origin[:, from_row, :, :length]

    def shrink(self) -> None:
        """Forget everything, and free memory if much of it was grown."""
        if self._layers * self.stored[0].nbytes > _KEEP_BYTES:
            self._allocate()

    def _allocate(self) -> None:
        shape = self._shape(min(_FIRST_ROWS, self._limits[0]), min(_FIRST_LENGTH, self._limits[1]))
        self.stored = [torch.zeros(shape) for _ in range(self._layers)]

    def _shape(self, rows: int, length: int) -> tuple[int, ...]:
        return 2, rows, self._inner[0], length, self._inner[1]

    def _reserve(self, rows: int, length: int) -> None:
        has_rows, has_length = self.capacity
        if rows <= has_rows and length <= has_length:
            return
        most_rows, most_length = self._limits
        shape = self._shape(
            _doubled(has_rows, rows, most_rows), _doubled(has_length, length, most_length)
        )
        for layer, old in enumerate(self.stored):
            grown = torch.zeros(shape)
            grown[:, :has_rows, :, :has_length] = old
            self.stored[layer] = grown


def _doubled(has: int, needed: int, limit: int) -> int:
    while has < needed:
        has *= 2
    return min(has, limit)
