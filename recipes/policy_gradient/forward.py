"""Padded batches of rollouts, a forward over their response positions, and the logits there."""

# Shapes: B rollouts, P prompt positions, R response positions, H hidden units, V vocabulary.

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.modeling_outputs import MoeModelOutputWithPast

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


def pad(rollouts: Sequence[Rollout], device: torch.device) -> Padded:
    prompt = max(len(r.prompt) for r in rollouts)
    response = max(len(r.response) for r in rollouts)
    ids, attention, behaviour, mask = [], [], [], []
    for r in rollouts:
        left, right = prompt - len(r.prompt), response - len(r.response)
        # Padding is told by its place. A configuration's own id for it may be in no vocabulary.
        ids.append([0] * left + [*r.prompt, *r.response] + [0] * right)
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


class Head:
    """The end of a causal model, from hidden states [..., H] to logits [..., V], in float32."""

    # Behind the decoder some models do more than `lm_head`: Gemma caps its logits, Granite divides
    # them. So the model's own forward runs, with the hidden states in place of its decoder.
    def __init__(self, causal: Any) -> None:
        parts: dict[int, Any] = {id(part): part for part in causal.children()}
        self._end = copy.deepcopy(causal, {**parts, id(causal.model): _Given()})

    def __call__(self, hidden: Tensor) -> Tensor:
        rows = hidden.reshape(1, -1, hidden.shape[-1])
        logits: Tensor = self._end(inputs_embeds=rows, use_cache=False).logits
        return logits.float().view(*hidden.shape[:-1], -1)


class _Given(nn.Module):
    def forward(self, *, inputs_embeds: Tensor, **_: Any) -> MoeModelOutputWithPast:
        return MoeModelOutputWithPast(last_hidden_state=inputs_embeds)
