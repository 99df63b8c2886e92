"""Breaks within a forward, before each layer."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn


class LayerBreaks:
    """Hooks that run a function before each layer, and before and after the output's."""

    def __init__(self, model: Any) -> None:
        modules: Iterator[nn.Module] = model.modules()
        layers = next((module for module in modules if isinstance(module, nn.ModuleList)), ())
        head: nn.Module | None = model.get_output_embeddings()
        self._after: list[nn.Module] = [head] if head is not None else []
        self._modules: list[nn.Module] = [*layers, *self._after]

    @contextlib.contextmanager
    def running(self, action: Callable[[], None]) -> Iterator[None]:
        """Run `action` at the breaks of forwards inside. Its own forwards have none."""
        within = False

        def pause(*_: Any) -> None:
            nonlocal within
            if not within:
                within = True
                try:
                    action()
                finally:
                    within = False

        hooks = [module.register_forward_pre_hook(pause) for module in self._modules]
        hooks += [module.register_forward_hook(pause) for module in self._after]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
