"""A LoRA policy on a frozen causal language model."""

# With a float32 base and one torch thread the log-probabilities of sampler and trainer agree to
# 1e-5, and the same seed gives the same bits.
#
# Shapes: B rollouts, R response positions, H hidden units, V vocabulary.

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import peft
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, optim

from recipes.policy_gradient.allowed import mask_forbidden
from recipes.policy_gradient.compute import Compute
from recipes.policy_gradient.forward import Head, Padded, pad, response_hidden
from recipes.policy_gradient.knobs import PolicyKnobs
from recipes.policy_gradient.rollouts import Rollout
from reefcommon.errors import Poison

WEIGHTS, CONFIG, OPTIMIZER = "adapter_model.safetensors", "adapter_config.json", "optimizer.pt"


@dataclass(frozen=True, slots=True)
class Scored:
    """The result of a forward. Column t of R belongs to response token t.

    `hidden_BRH` is the last hidden state that each token was sampled from, detached.
    """

    logp_BR: Tensor
    entropy_BR: Tensor
    hidden_BRH: Tensor
    behaviour_BR: Tensor
    mask_BR: Tensor

    def ratio(self) -> Tensor:
        """Return the importance ratio of each token [B, R], without a gradient."""
        return (self.logp_BR.detach() - self.behaviour_BR).exp()


class LoraPolicy:
    def __init__(self, knobs: PolicyKnobs, model_path: Path) -> None:
        torch.set_num_threads(1)
        self.compute = Compute.of(knobs)
        base = self.compute.causal(model_path)
        config = peft.LoraConfig(
            r=knobs.lora_r,
            lora_alpha=knobs.lora_alpha,
            target_modules=list(knobs.target_modules),
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(), warnings.catch_warnings():
            # peft reads an attribute under its old name.
            warnings.filterwarnings("ignore", ".is_gradient_checkpointing.", FutureWarning)
            torch.manual_seed(knobs.seed)
            # The adapter is drawn on the CPU, equal on every device, and is float32 (peft's cast).
            self.model: Any = peft.get_peft_model(base, config).to(self.compute.device)
        # Without the dropout of a configuration: the sampler has none, so the ratio would be noise.
        self.model.eval()
        self._head = Head(self.causal)
        self.hidden_size = int(base.config.hidden_size)
        self._knobs = knobs
        self._base_name = model_path.name
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._initial = {name: tensor.clone() for name, tensor in self.adapter().items()}
        self.optimizer = self._fresh_optimizer()

    @property
    def causal(self) -> Any:
        """The causal model with the adapter in it."""
        return self.model.get_base_model()

    def pad(self, rollouts: Sequence[Rollout]) -> Padded:
        return pad(rollouts, self.compute.device)

    def hidden(self, padded: Padded) -> Tensor:
        """Return the last hidden states [B, R, H] of the responses. See `response_hidden`."""
        return response_hidden(self.causal, padded, prompt_gradient=self._knobs.prompt_gradient)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [..., V] of hidden states [..., H], in float32."""
        return self._head(hidden)

    def score(self, rollouts: Sequence[Rollout]) -> Scored:
        """Run a forward over a padded batch."""
        padded = self.pad(rollouts)
        hidden_BRH = self.hidden(padded)
        logits_BRV = self.logits(hidden_BRH) / padded.temperature_B11
        logp_BRV = torch.log_softmax(mask_forbidden(logits_BRV, rollouts), dim=-1)
        logp_BR = logp_BRV.gather(-1, padded.response[:, :, None]).squeeze(-1)
        entropy_BR = -(logp_BRV.exp() * logp_BRV).sum(-1)
        hidden_BRH = hidden_BRH.detach()
        return Scored(logp_BR, entropy_BR, hidden_BRH, padded.behaviour_BR, padded.mask_BR)

    @torch.no_grad()
    def base_logp(self, rollouts: Sequence[Rollout]) -> Tensor:
        """Return the log-probabilities [B, R] of the frozen base, without the adapter."""
        with self.model.disable_adapter():
            return self.score(rollouts).logp_BR

    def update(self) -> float:
        """Clip, apply and clear the gradient. Returns its norm before clipping.

        Raises:
            Poison: the gradient is not finite. The weights are unchanged.
        """
        limit = self._knobs.max_grad_norm or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, limit))
        if not math.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise Poison("the policy's gradient is not finite")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def export(self, directory: Path) -> None:
        """Write a PEFT adapter. Equal weights give equal bytes."""
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {k: v.contiguous() for k, v in sorted(self.adapter().items())}
        save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
        stated = self.model.peft_config["default"].to_dict()
        config = {key: _plain(value) for key, value in stated.items()}
        config |= {"base_model_name_or_path": self._base_name, "inference_mode": True}
        text = json.dumps(config, indent=1, sort_keys=True)
        (directory / CONFIG).write_text(f"{text}\n", encoding="utf-8")

    def save(self, directory: Path) -> None:
        self.export(directory)
        torch.save(self.optimizer.state_dict(), directory / OPTIMIZER)

    def load(self, directory: Path) -> None:
        self._put(load_file(directory / WEIGHTS))
        saved = _loaded(directory / OPTIMIZER)
        # The moments go on. Its rate and decay are those of the knobs, which may have changed.
        saved["param_groups"] = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict(saved)

    def adopt(self, adapter: Path | None) -> None:
        """Take a published adapter, with a fresh optimizer. Raises Poison for another shape."""
        self._put(self._initial if adapter is None else load_file(adapter / WEIGHTS))
        self.optimizer = self._fresh_optimizer()

    def adapter(self) -> dict[str, Tensor]:
        """Return the adapter's tensors by their names in a PEFT file."""
        # peft would add the whole output matrix if lm_head is a target; nodes take LoRA pairs only.
        return dict(peft.get_peft_model_state_dict(self.model, save_embedding_layers=False))

    def _put(self, weights: dict[str, Tensor]) -> None:
        mine = {name: tensor.shape for name, tensor in self.adapter().items()}
        if mine != {name: tensor.shape for name, tensor in weights.items()}:
            raise Poison(
                "the adapter has other modules or another rank than this recipe trains; change "
                "lora_r or target_modules, or roll back"
            )
        peft.set_peft_model_state_dict(self.model, weights)

    def _fresh_optimizer(self) -> optim.AdamW:
        return torch.optim.AdamW(
            self._parameters,
            lr=self._knobs.policy_lr,
            betas=(0.9, self._knobs.adam_beta2),
            weight_decay=0.0,
        )


def _loaded(path: Path) -> Any:
    # The optimizer brings the tensors to its weights' device, also if another device wrote them.
    return torch.load(path, weights_only=True, map_location="cpu")


def _plain(value: Any) -> Any:
    # PEFT's configuration holds sets, whose order differs between processes, and enums.
    if isinstance(value, set | frozenset):
        return sorted(value)
    return value.value if isinstance(value, Enum) else value
