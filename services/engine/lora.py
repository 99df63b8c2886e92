"""LoRA adapters in PEFT's format, applied per row of a batch."""
# A forward hook adds `scale * x A^T B^T` to the rows that ask for it. peft's own mixed batches wrap
# every module, rename the parameters that weight transfers address by name, and copy rows per
# adapter on every layer.

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

# (out, in) of the linear layers, by name.
Shapes = Mapping[str, tuple[int, int]]
_PREFIX = "base_model.model."
_REFUSED = (
    *("use_dora", "use_qalora", "alora_invocation_tokens", "modules_to_save", "fan_in_fan_out"),
    *("bias", "lora_bias", "layer_replication"),
)
# Such an adapter is the difference to weights that its trainer put in place of the model's.
_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_KEY = re.compile(r"^(?P<module>.+)\.lora_(?P<side>[AB])\.weight$")


class AdapterError(ValueError):
    """The adapter's files are missing or cannot be served here."""


@dataclass(frozen=True, slots=True)
class LoraDelta:
    """The update of a module; down: [rank, in], up: [out, rank] with the scale in it."""

    down: Tensor
    up: Tensor


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Adapter:
    """A loaded adapter. `deltas` is keyed by the base model's module names."""

    name: str
    path: str
    rank: int
    deltas: Mapping[str, LoraDelta]
    # Of the base weights when it was loaded.
    base_version: str = ""


@dataclass(frozen=True, slots=True)
class AdapterGroup:
    """The rows [k] of a batch that use an adapter; None: all rows."""

    adapter: Adapter
    rows: Tensor | None


class LoraLayers:
    """Hooks on the linear layers of a model."""

    # They exist only while adapters are in use: each costs its layer some microseconds a call.

    def __init__(self, model: nn.Module) -> None:
        self.groups: tuple[AdapterGroup, ...] = ()
        modules = model.named_modules()
        self._layers = {name: layer for name, layer in modules if isinstance(layer, nn.Linear)}
        self._hooks: list[RemovableHandle] = []
        # (out, in) of every module that an adapter may target.
        layers = self._layers.items()
        self.shapes = {name: (layer.out_features, layer.in_features) for name, layer in layers}

    def use(self, groups: tuple[AdapterGroup, ...]) -> None:
        """Set the adapters of the forwards that follow."""
        self.groups = groups
        if groups and not self._hooks:
            layers = self._layers.items()
            self._hooks = [layer.register_forward_hook(self._hook(name)) for name, layer in layers]

    def rest(self) -> None:
        """Remove the hooks."""
        self.groups = ()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _hook(self, name: str) -> Any:
        def add_deltas(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            for group in self.groups:
                delta = group.adapter.deltas.get(name)
                if delta is None:
                    continue
                if group.rows is None:
                    output += args[0] @ delta.down.T @ delta.up.T
                else:
                    output[group.rows] += args[0][group.rows] @ delta.down.T @ delta.up.T

        return add_deltas


def load_adapter(name: str, path: Path, shapes: Shapes, max_rank: int) -> Adapter:
    """Read a PEFT adapter directory. Raises `AdapterError`."""
    config = _read_config(path)
    weights_file = path / "adapter_model.safetensors"
    if not weights_file.is_file():
        raise AdapterError(f"No adapter found at {path}: adapter_model.safetensors is missing")
    try:
        # A mapped file that is rewritten changes the weights, or ends the process (SIGBUS).
        tensors = load_file(weights_file, backend="pread")
    except SafetensorError as error:
        raise AdapterError(f"{weights_file.name} of the adapter cannot be read: {error}") from error
    sides: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        match = _KEY.match(key.removeprefix(_PREFIX))
        if match is None:
            raise AdapterError(f"adapter tensor {key!r} is not a LoRA weight of a linear layer")
        sides.setdefault(match["module"], {})[match["side"]] = tensor.to(torch.float32)
    if not sides:
        raise AdapterError(f"adapter {name!r} holds no weights")
    deltas = {key: _delta(key, pair, config, shapes, max_rank) for key, pair in sides.items()}
    rank = max(delta.down.shape[0] for delta in deltas.values())
    return Adapter(name=name, path=str(path), rank=rank, deltas=deltas)


def _read_config(path: Path) -> dict[str, Any]:
    file = path / "adapter_config.json"
    if not file.is_file():
        raise AdapterError(f"No adapter found at {path}: adapter_config.json is missing")
    try:
        config = orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError as error:
        raise AdapterError(f"{file.name} of the adapter is not JSON: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type", "LORA") != "LORA":
        raise AdapterError("only adapters with peft_type LORA can be served")
    for option in _REFUSED:
        if config.get(option) not in (None, False, [], "none"):
            raise AdapterError(f"adapter option {option} is not supported by this server")
    if str(config.get("init_lora_weights")).startswith(_CHANGE_THE_BASE):
        raise AdapterError("the adapter is for changed base weights (init_lora_weights)")
    return config


def _delta(
    module: str, pair: dict[str, Tensor], config: dict[str, Any], shapes: Shapes, max_rank: int
) -> LoraDelta:
    if module not in shapes:
        raise AdapterError(f"the adapter targets {module!r}, no linear layer of this model")
    if pair.keys() != {"A", "B"}:
        raise AdapterError(f"the adapter has only half of the LoRA pair of {module!r}")
    down, up = pair["A"], pair["B"]
    (rows, columns), rank = shapes[module], down.shape[0] if down.shape else 0
    if down.shape != (rank, columns) or up.shape != (rows, rank):
        sizes = f"A {tuple(down.shape)}, B {tuple(up.shape)}"
        raise AdapterError(f"{module!r}: shapes {sizes} do not fit the layer ({rows} x {columns})")
    if not 0 < rank <= max_rank:
        raise AdapterError(f"LoRA rank {rank} is not between 1 and max_lora_rank {max_rank}")
    up = up * (_alpha(config, module, rank) / (rank**0.5 if config.get("use_rslora") else rank))
    if not (bool(down.isfinite().all()) and bool(up.isfinite().all())):
        raise AdapterError(f"the adapter's scaled weights for {module!r} are not finite numbers")
    return LoraDelta(down=down.contiguous(), up=up.contiguous())


def _alpha(config: Mapping[str, Any], module: str, rank: int) -> float:
    try:
        # PEFT matches the keys of a pattern against the end of the module's name.
        pairs = (config.get("alpha_pattern") or {}).items()
        fit = (alpha for key, alpha in pairs if re.match(rf"(.*\.)?({key})$", module))
        return float(next(fit, config.get("lora_alpha", rank)))
    except (TypeError, ValueError, AttributeError, re.error) as error:
        raise AdapterError(f"lora_alpha or alpha_pattern of the adapter: {error}") from error
