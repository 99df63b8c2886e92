"""Models that do not learn: the base, an average of the policy, a teacher from a directory."""

# A copy shares the base weights with the policy, which never changes them. Its adapter is its own:
# nothing is switched on the policy itself, so a copy may run inside the policy's backward pass.
#
# Shapes: B rollouts, R response positions, H hidden units, V vocabulary.

import copy
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import Tensor

from recipes.policy_gradient.forward import Head, pad, response_hidden
from recipes.policy_gradient.policy import LoraPolicy
from recipes.policy_gradient.rollouts import Rollout
from reefcommon.errors import Poison

FILE = "teacher.safetensors"
_ADAPTER_CONFIG, _NAME = "adapter_config.json", "teacher"


class FrozenModel:
    """A causal model without gradients."""

    def __init__(self, causal: Any) -> None:
        causal.eval()
        causal.requires_grad_(requires_grad=False)
        self.causal = causal
        self._head = Head(causal)

    @torch.no_grad()
    def hidden(self, rollouts: Sequence[Rollout]) -> Tensor:
        """Return the last hidden states [B, R, H] that the response tokens would come from."""
        return response_hidden(self.causal, pad(rollouts, self.causal.device))

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] of hidden states [..., H], in float32."""
        return self._head(hidden)


class Average(FrozenModel):
    """A moving average of the policy's adapter: `teacher = (1 - rate) teacher + rate policy`."""

    def __init__(self, policy: LoraPolicy) -> None:
        self._policy, self._copy = policy, _copy_of(policy)
        super().__init__(self._copy.get_base_model())

    @torch.no_grad()
    def follow(self, rate: float) -> None:
        mine, theirs = self._adapter(), self._policy.adapter()
        for name, tensor in mine.items():
            tensor.lerp_(theirs[name], rate)

    def restart(self) -> None:
        """Begin again at the policy's weights."""
        self.follow(1.0)

    def save(self, directory: Path) -> None:
        tensors = {k: v.contiguous() for k, v in sorted(self._adapter().items())}
        save_file(tensors, directory / FILE, metadata={"format": "pt"})

    @torch.no_grad()
    def load(self, directory: Path) -> None:
        """Read a saved average; a state of before there was one begins at the policy's weights."""
        if not (directory / FILE).is_file():
            self.restart()
            return
        saved = load_file(directory / FILE)
        for name, tensor in self._adapter().items():
            tensor.copy_(saved[name])

    def _adapter(self) -> dict[str, Tensor]:
        # The tensors of the model itself: a change in place changes the model.
        return dict(get_peft_model_state_dict(self._copy, save_embedding_layers=False))


def base_model(policy: LoraPolicy) -> FrozenModel:
    """Return the policy's base model: its frozen reference."""
    copied = _copy_of(policy)
    copied.base_model.disable_adapter_layers()
    return FrozenModel(copied.get_base_model())


def teacher_in(directory: Path, policy: LoraPolicy) -> FrozenModel:
    """Return the teacher in a directory: a PEFT adapter on the policy's base, or a whole model.

    Raises:
        Poison: the model has another vocabulary than the policy.
    """
    if (directory / _ADAPTER_CONFIG).is_file():
        copied = _copy_of(policy)
        copied.load_adapter(str(directory), _NAME, torch_device=str(policy.compute.device))
        copied.set_adapter(_NAME)
        copied.delete_adapter("default")
        return FrozenModel(copied.get_base_model())
    causal = policy.compute.causal(directory)
    size, wanted = causal.config.vocab_size, policy.causal.config.vocab_size
    if size != wanted:
        raise Poison(f"the teacher in {directory} has {size} tokens, the policy {wanted}")
    return FrozenModel(causal.to(policy.compute.device))


def _copy_of(policy: LoraPolicy) -> Any:
    model = policy.model
    frozen = [p for p in model.parameters() if not p.requires_grad]
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*frozen, *model.buffers())}
    with warnings.catch_warnings():
        # peft reads an attribute under its old name.
        warnings.filterwarnings("ignore", ".is_gradient_checkpointing.", FutureWarning)
        return copy.deepcopy(model, shared)
