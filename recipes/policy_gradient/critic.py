"""A value head on the policy's last hidden states, which it reads without sending a gradient back."""

from pathlib import Path
from typing import TYPE_CHECKING

from recipes.policy_gradient.losses import value_loss

if TYPE_CHECKING:
    from torch import Tensor

FILE = "critic.pt"


class Critic:
    """V(s_t) from the state that token t was chosen from. Its last layer starts at zero: before it has learnt, the baseline is 0."""

    def __init__(self, hidden_size: int, *, width: int, learning_rate: float, seed: int) -> None:
        import torch
        from torch import nn

        with torch.random.fork_rng():
            torch.manual_seed(seed)
            last = nn.Linear(width or hidden_size, 1)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            body = (nn.Linear(hidden_size, width), nn.Tanh()) if width else ()
            self.head = nn.Sequential(
                nn.LayerNorm(hidden_size, elementwise_affine=False), *body, last
            )
        self.optimizer = torch.optim.AdamW(
            self.head.parameters(), lr=learning_rate, weight_decay=0.0
        )

    def values(self, hidden: "Tensor") -> "Tensor":
        """[…, H] hidden states -> […] values; with a graph for the head only."""
        values: Tensor = self.head(hidden.detach()).squeeze(-1)
        return values

    def update(
        self, features_NH: "Tensor", return_N: "Tensor", weight_N: "Tensor", max_grad_norm: float
    ) -> tuple[float, float]:
        """One step towards the returns of N action tokens, whose weights add up to 1: (loss before it, gradient norm)."""
        from torch import nn

        loss = value_loss(self.values(features_NH), return_N, weight_N)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(self.head.parameters(), max_grad_norm))
        self.optimizer.step()
        return loss.item(), norm

    def save(self, directory: Path) -> None:
        """The head and its optimizer."""
        import torch

        torch.save(
            {"head": self.head.state_dict(), "optimizer": self.optimizer.state_dict()},
            directory / FILE,
        )

    def load(self, directory: Path) -> None:
        """Go on exactly where `save` was called."""
        import torch

        state = torch.load(directory / FILE, weights_only=True)
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
