"""A value head on the policy's last hidden states, without gradient to the policy."""

# Shapes: B rollouts, R response positions, H hidden units, N action tokens of all rollouts.

import math
from pathlib import Path

import torch
from torch import Tensor, nn

FILE = "critic.pt"


class Critic:
    """V(s_t) from the hidden state that token t was sampled from."""

    def __init__(
        self, hidden_size: int, *, width: int, learning_rate: float, seed: int, device: torch.device
    ) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            last = nn.Linear(width or hidden_size, 1)
            # Zero weights: the first baseline is 0.
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            body = (nn.Linear(hidden_size, width), nn.Tanh()) if width else ()
            norm = nn.LayerNorm(hidden_size, elementwise_affine=False)
            self.head = nn.Sequential(norm, *body, last).to(device)
        parameters = self.head.parameters()
        self.optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0)

    def values(self, hidden_BRH: Tensor) -> Tensor:
        values: Tensor = self.head(hidden_BRH.detach().float()).squeeze(-1)
        return values

    def update(
        self, hidden_NH: Tensor, return_N: Tensor, weight_N: Tensor, max_grad_norm: float
    ) -> tuple[float, float]:
        """Step towards the returns. The weights add up to 1.

        Returns (loss before the step, gradient norm before clipping).
        """
        # Weights 1 / (rollouts * actions of the rollout) aggregate as `sample_mean` does.
        loss = (weight_N * (self.values(hidden_NH) - return_N.detach()) ** 2).sum()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(self.head.parameters(), max_grad_norm or math.inf))
        self.optimizer.step()
        return loss.item(), norm

    def save(self, directory: Path) -> None:
        state = {"head": self.head.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, directory / FILE)

    def load(self, directory: Path) -> None:
        state = torch.load(directory / FILE, weights_only=True, map_location="cpu")
        self.head.load_state_dict(state["head"])
        # As the policy's: the moments go on, at the rate of the knobs.
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
