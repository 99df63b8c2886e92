"""A LoRA policy on a frozen causal language model: exact log-probabilities of given ids, an optimizer, saved and resumed exactly.

fp32 and one torch thread: sampler and trainer then agree to 1e-5, and the same seed gives the same bits.
"""

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from recipes.policy_gradient.rollouts import Rollout
from reefcommon.errors import Poison

if TYPE_CHECKING:
    from torch import Tensor, optim
    from transformers import DynamicCache

ALL_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of a decoder block, as Llama and its kin name them."""
WEIGHTS, CONFIG, OPTIMIZER = "adapter_model.safetensors", "adapter_config.json", "optimizer.pt"


class PolicyKnobs(Protocol):
    """What every recipe with a LoRA policy has among its knobs."""

    @property
    def lora_r(self) -> int: ...
    @property
    def lora_alpha(self) -> int: ...
    @property
    def target_modules(self) -> tuple[str, ...]: ...
    @property
    def policy_lr(self) -> float: ...
    @property
    def max_grad_norm(self) -> float: ...
    @property
    def prompt_gradient(self) -> bool: ...
    @property
    def seed(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Scored:
    """What one forward says of a batch. Column t of R speaks of response token t, and is computed from what came before it."""

    logp_BR: "Tensor"
    entropy_BR: "Tensor"
    hidden_BRH: "Tensor"
    """Last hidden state that each token was chosen from; detached."""
    behaviour_BR: "Tensor"
    mask_BR: "Tensor"


class LoraPolicy:
    """The policy. The base is frozen; only the adapter learns."""

    def __init__(self, knobs: PolicyKnobs, model_path: Path) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        base = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        base.config.use_cache = False
        config = LoraConfig(
            r=knobs.lora_r,
            lora_alpha=knobs.lora_alpha,
            target_modules=list(knobs.target_modules),
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=".is_gradient_checkpointing.", category=FutureWarning
            )  # peft reads an old name
            torch.manual_seed(knobs.seed)
            self.model: Any = get_peft_model(base, config)
        self.model.train()
        self.hidden_size = int(base.config.hidden_size)
        self._knobs = knobs
        self._base_name = model_path.name
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self._initial = {name: tensor.clone() for name, tensor in self._adapter().items()}
        self.optimizer = self._fresh_optimizer()

    def score(self, rollouts: Sequence[Rollout]) -> Scored:
        """One forward over a padded batch: prompts end in one column, so that every response starts in the next.

        Without `prompt_gradient` all but the prompt's last token is run without a graph: faster, but the gradient that
        would reach the adapter through the prompt's keys and values is left out.
        """
        import torch
        from transformers import DynamicCache

        causal = self.model.get_base_model()
        tensors = _pad(rollouts, int(causal.config.pad_token_id or 0))
        prompt = tensors.prompt_length
        cache, start = None, 0
        if not self._knobs.prompt_gradient and prompt > 1:
            cache, start = DynamicCache(config=causal.config), prompt - 1
            with torch.no_grad():
                self._decode(tensors, 0, start, cache)
        hidden = self._decode(tensors, start, tensors.ids.shape[1] - 1, cache)[
            :, prompt - 1 - start :
        ]
        logits = causal.lm_head(hidden) / tensors.temperature_B11
        logp_all = torch.log_softmax(logits, dim=-1)
        logp = logp_all.gather(-1, tensors.ids[:, prompt:, None]).squeeze(-1)
        entropy = -(logp_all.exp() * logp_all).sum(-1)
        return Scored(logp, entropy, hidden.detach(), tensors.behaviour_BR, tensors.mask_BR)

    def _decode(
        self, tensors: "_Padded", start: int, end: int, cache: "DynamicCache | None"
    ) -> "Tensor":
        """Last hidden states of columns [start, end). Arguments by position: the cache's name differs between versions of transformers."""
        ids, positions = tensors.ids[:, start:end], tensors.positions[:, start:end]
        output = self.model.get_base_model().model(
            ids, tensors.attention[:, :end], positions, cache, use_cache=cache is not None
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def update(self) -> float:
        """Clip, apply and clear the accumulated gradient; the norm before clipping. A gradient that is not finite changes nothing."""
        import torch

        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._knobs.max_grad_norm))
        if not math.isfinite(norm):
            self.optimizer.zero_grad(set_to_none=True)
            raise Poison("the policy's gradient is not finite")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def export(self, directory: Path) -> None:
        """Write the adapter in PEFT's format. The same weights give the same bytes, so that they are the same content."""
        from safetensors.torch import save_file

        directory.mkdir(parents=True, exist_ok=True)
        save_file(
            {k: v.contiguous() for k, v in sorted(self._adapter().items())},
            directory / WEIGHTS,
            metadata={"format": "pt"},
        )
        config = {
            key: _plain(value) for key, value in self.model.peft_config["default"].to_dict().items()
        }
        config |= {"base_model_name_or_path": self._base_name, "inference_mode": True}
        (directory / CONFIG).write_text(
            json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8"
        )

    def save(self, directory: Path) -> None:
        """The adapter and its optimizer."""
        import torch

        self.export(directory)
        torch.save(self.optimizer.state_dict(), directory / OPTIMIZER)

    def load(self, directory: Path) -> None:
        """Go on exactly where `save` was called."""
        import torch
        from safetensors.torch import load_file

        self._put(load_file(directory / WEIGHTS))
        self.optimizer.load_state_dict(torch.load(directory / OPTIMIZER, weights_only=True))

    def adopt(self, adapter: Path | None) -> None:
        """Take a published adapter (None: the base model as it is), with a fresh optimizer. Raises Poison where it does not fit."""
        from safetensors.torch import load_file

        self._put(self._initial if adapter is None else load_file(adapter / WEIGHTS))
        self.optimizer = self._fresh_optimizer()

    def _adapter(self) -> "dict[str, Tensor]":
        from peft import get_peft_model_state_dict

        # peft would add the whole output matrix when lm_head is a target; serving nodes want LoRA pairs only.
        return dict(get_peft_model_state_dict(self.model, save_embedding_layers=False))

    def _put(self, weights: "dict[str, Tensor]") -> None:
        from peft import set_peft_model_state_dict

        mine = {name: tensor.shape for name, tensor in self._adapter().items()}
        if mine != {name: tensor.shape for name, tensor in weights.items()}:
            raise Poison(
                "the adapter has other modules or another rank than this recipe trains; change lora_r or target_modules, or roll back"
            )
        set_peft_model_state_dict(self.model, weights)

    def _fresh_optimizer(self) -> "optim.AdamW":
        import torch

        return torch.optim.AdamW(self._parameters, lr=self._knobs.policy_lr, weight_decay=0.0)


@dataclass(frozen=True, slots=True)
class _Padded:
    """[pad … prompt | response … pad], so that column `prompt_length` is the first response token of every row."""

    ids: "Tensor"
    attention: "Tensor"
    positions: "Tensor"
    prompt_length: int
    behaviour_BR: "Tensor"
    mask_BR: "Tensor"
    temperature_B11: "Tensor"


def _pad(rollouts: Sequence[Rollout], pad_id: int) -> _Padded:
    import torch

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
    """PEFT's configuration holds sets, whose order differs between processes, and enums."""
    if isinstance(value, set | frozenset):
        return sorted(value)
    return value.value if isinstance(value, Enum) else value
