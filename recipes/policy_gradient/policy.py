"""A LoRA policy on a frozen causal language model."""

# fp32 and one torch thread: sampler's and trainer's log-probabilities agree to 1e-5, and the
# same seed gives the same bits.
#
# Shapes: B rollouts, P prompt positions, R response positions, H hidden units, V vocabulary.

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
from transformers import AutoModelForCausalLM, DynamicCache

from recipes.policy_gradient.knobs import PolicyGradientKnobs
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


@dataclass(frozen=True, slots=True)
class _Padded:
    """[pad … prompt | response … pad]: responses begin in column `prompt_length`.

    `ids`, `attention` and `positions` are [B, P + R].
    """

    ids: Tensor
    attention: Tensor
    positions: Tensor
    prompt_length: int
    behaviour_BR: Tensor
    mask_BR: Tensor
    temperature_B11: Tensor


class LoraPolicy:
    def __init__(self, knobs: PolicyGradientKnobs, model_path: Path) -> None:
        torch.set_num_threads(1)
        base = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        base.config.use_cache = False
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
            self.model: Any = peft.get_peft_model(base, config)
        self.model.train()
        self.hidden_size = int(base.config.hidden_size)
        self._knobs = knobs
        self._base_name = model_path.name
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._initial = {name: tensor.clone() for name, tensor in self._adapter().items()}
        self.optimizer = self._fresh_optimizer()

    def score(self, rollouts: Sequence[Rollout]) -> Scored:
        """Run a forward over a padded batch.

        Without `prompt_gradient` the prompt, except its last token, has no graph: faster, but the
        gradient through its keys and values is left out.
        """
        causal = self.model.get_base_model()
        padded = _pad(rollouts, int(causal.config.pad_token_id or 0))
        prompt = padded.prompt_length
        cache, start = None, 0
        if not self._knobs.prompt_gradient and prompt > 1:
            cache, start = DynamicCache(config=causal.config), prompt - 1
            with torch.no_grad():
                self._decode(padded, 0, start, cache)
        end = padded.ids.shape[1] - 1
        hidden_BRH = self._decode(padded, start, end, cache)[:, prompt - 1 - start :]
        logits_BRV = causal.lm_head(hidden_BRH) / padded.temperature_B11
        logp_BRV = torch.log_softmax(logits_BRV, dim=-1)
        logp_BR = logp_BRV.gather(-1, padded.ids[:, prompt:, None]).squeeze(-1)
        entropy_BR = -(logp_BRV.exp() * logp_BRV).sum(-1)
        hidden_BRH = hidden_BRH.detach()
        return Scored(logp_BR, entropy_BR, hidden_BRH, padded.behaviour_BR, padded.mask_BR)

    def _decode(self, padded: _Padded, start: int, end: int, cache: DynamicCache | None) -> Tensor:
        ids, positions = padded.ids[:, start:end], padded.positions[:, start:end]
        # Arguments by position: the cache's name differs between versions of transformers.
        output = self.model.get_base_model().model(
            ids, padded.attention[:, :end], positions, cache, use_cache=cache is not None
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def update(self) -> float:
        """Clip, apply and clear the gradient. Returns its norm before clipping.

        Raises:
            Poison: the gradient is not finite. The weights are unchanged.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._knobs.max_grad_norm))
        if not math.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise Poison("the policy's gradient is not finite")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def export(self, directory: Path) -> None:
        """Write a PEFT adapter. Equal weights give equal bytes."""
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {k: v.contiguous() for k, v in sorted(self._adapter().items())}
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
        self.optimizer.load_state_dict(torch.load(directory / OPTIMIZER, weights_only=True))

    def adopt(self, adapter: Path | None) -> None:
        """Take a published adapter, with a fresh optimizer. Raises Poison for another shape."""
        self._put(self._initial if adapter is None else load_file(adapter / WEIGHTS))
        self.optimizer = self._fresh_optimizer()

    def _adapter(self) -> dict[str, Tensor]:
        # peft would add the whole output matrix if lm_head is a target; nodes take LoRA pairs only.
        return dict(peft.get_peft_model_state_dict(self.model, save_embedding_layers=False))

    def _put(self, weights: dict[str, Tensor]) -> None:
        mine = {name: tensor.shape for name, tensor in self._adapter().items()}
        if mine != {name: tensor.shape for name, tensor in weights.items()}:
            raise Poison(
                "the adapter has other modules or another rank than this recipe trains; change "
                "lora_r or target_modules, or roll back"
            )
        peft.set_peft_model_state_dict(self.model, weights)

    def _fresh_optimizer(self) -> optim.AdamW:
        return torch.optim.AdamW(self._parameters, lr=self._knobs.policy_lr, weight_decay=0.0)


def _pad(rollouts: Sequence[Rollout], pad_id: int) -> _Padded:
    prompt = max(len(r.prompt) for r in rollouts)
    response = max(len(r.response) for r in rollouts)
    ids, attention, behaviour, mask = [], [], [], []
    for r in rollouts:
        left, right = prompt - len(r.prompt), response - len(r.response)
        ids.append([pad_id] * left + [*r.prompt, *r.response] + [pad_id] * right)
        attention.append([0] * left + [1] * (len(r.prompt) + len(r.response)) + [0] * right)
        behaviour.append([*r.behaviour_logp, *[0.0] * right])
        mask.append([*r.mask, *[0] * right])
    attention_t = torch.tensor(attention)
    return _Padded(
        ids=torch.tensor(ids),
        attention=attention_t,
        positions=(attention_t.cumsum(1) - 1).clamp(min=0),
        prompt_length=prompt,
        behaviour_BR=torch.tensor(behaviour, dtype=torch.float32),
        mask_BR=torch.tensor(mask, dtype=torch.float32),
        temperature_B11=torch.tensor([r.temperature for r in rollouts])[:, None, None],
    )


def _plain(value: Any) -> Any:
    # PEFT's configuration holds sets, whose order differs between processes, and enums.
    if isinstance(value, set | frozenset):
        return sorted(value)
    return value.value if isinstance(value, Enum) else value
