"""Padded batches of rollouts, and a forward over their response positions."""

# Shapes: B rollouts, P prompt positions, R response positions, H hidden units.

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from recipes.policy_gradient.rollouts import Rollout


@dataclass(frozen=True, slots=True)
class Padded:
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

    @property
    def response(self) -> Tensor:
        """The response ids [B, R]."""
        return self.ids[:, self.prompt_length :]


def pad(rollouts: Sequence[Rollout], pad_id: int, device: torch.device) -> Padded:
    prompt = max(len(r.prompt) for r in rollouts)
    response = max(len(r.response) for r in rollouts)
    ids, attention, behaviour, mask = [], [], [], []
    for r in rollouts:
        left, right = prompt - len(r.prompt), response - len(r.response)
        ids.append([pad_id] * left + [*r.prompt, *r.response] + [pad_id] * right)
        attention.append([0] * left + [1] * (len(r.prompt) + len(r.response)) + [0] * right)
        behaviour.append([*r.behaviour_logp, *[0.0] * right])
        mask.append([*r.mask, *[0] * right])
    attention_t = torch.tensor(attention, device=device)
    temperature = torch.tensor([r.temperature for r in rollouts], device=device)
    return Padded(
        ids=torch.tensor(ids, device=device),
        attention=attention_t,
        positions=(attention_t.cumsum(1) - 1).clamp(min=0),
        prompt_length=prompt,
        behaviour_BR=torch.tensor(behaviour, dtype=torch.float32, device=device),
        mask_BR=torch.tensor(mask, dtype=torch.float32, device=device),
        temperature_B11=temperature[:, None, None],
    )


def response_hidden(causal: Any, padded: Padded, *, prompt_gradient: bool = True) -> Tensor:
    """Return the last hidden states [B, R, H] that the response tokens were sampled from.

    Without `prompt_gradient` the prompt, except its last token, has no graph: faster, but the
    gradient through its keys and values is left out.
    """
    prompt = padded.prompt_length
    cache, start = None, 0
    if not prompt_gradient and prompt > 1:
        cache, start = DynamicCache(config=causal.config), prompt - 1
        with torch.no_grad():
            _decode(causal, padded, 0, start, cache)
    end = padded.ids.shape[1] - 1
    return _decode(causal, padded, start, end, cache)[:, prompt - 1 - start :]


def _decode(
    causal: Any, padded: Padded, start: int, end: int, cache: DynamicCache | None
) -> Tensor:
    ids, positions = padded.ids[:, start:end], padded.positions[:, start:end]
    # Arguments by position: the cache's name differs between versions of transformers.
    output = causal.model(
        ids, padded.attention[:, :end], positions, cache, use_cache=cache is not None
    )
    hidden: Tensor = output.last_hidden_state
    return hidden
