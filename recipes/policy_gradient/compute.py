"""The device of a learner, and the number type of its base model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from recipes.policy_gradient.knobs import PolicyKnobs
from reefcommon.errors import Unavailable

# In the number type of the base are its frozen weights and its activations. The adapter, its
# optimizer, the critic, and everything from the logits on are float32: updates of 1e-4 vanish in
# bfloat16, and so do differences between two log-probabilities.


@dataclass(frozen=True, slots=True)
class Compute:
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, knobs: PolicyKnobs) -> "Compute":
        """Return the knobs' choice. Raises Unavailable if CUDA is asked for and not there."""
        there = torch.cuda.is_available()
        if knobs.device == "cuda" and not there:
            raise Unavailable(
                "device: cuda, but torch finds no GPU here; set it to auto or cpu, or install"
                " torch's CUDA build (TORCH=cuda make setup)"
            )
        device = ("cuda" if there else "cpu") if knobs.device == "auto" else knobs.device
        auto = "bfloat16" if device == "cuda" else "float32"
        name = auto if knobs.dtype == "auto" else knobs.dtype
        return cls(torch.device(device), getattr(torch, name))

    def causal(self, directory: Path) -> Any:
        """Load a causal language model for training."""
        causal = AutoModelForCausalLM.from_pretrained(directory, dtype=self.dtype)
        causal.config.use_cache = False
        return causal
