"""The step of guidance: that of TTT-Discover, on the tokens of the guidance alone."""

from collections.abc import Sequence
from pathlib import Path

from transformers import AutoTokenizer

from recipes.guidance.form import guidance_mask
from recipes.guidance.recipe import Knobs
from recipes.policy_gradient.rollouts import Rollout
from recipes.ttt_discover.learner import TTTDiscoverLearner


class GuidanceLearner(TTTDiscoverLearner):
    """An actor alone; see `reefcommon.recipe.Learner`."""

    def __init__(self, knobs: Knobs, model_path: Path) -> None:
        super().__init__(knobs, model_path)
        self.tags = knobs.tags
        # It only reads tokens; none is made from text.
        self.tokenizer = AutoTokenizer.from_pretrained(model_path) if knobs.tags else None

    def _pull_to_base(
        self, rollouts: Sequence[Rollout], advantages: Sequence[float]
    ) -> tuple[list[list[float]], float]:
        folded, drift = super()._pull_to_base(rollouts, advantages)
        masks = [guidance_mask(one.response, self._decode, tags=self.tags) for one in rollouts]
        kept = [
            [advantage * bit for advantage, bit in zip(row, mask, strict=True)]
            for row, mask in zip(folded, masks, strict=True)
        ]
        return kept, drift

    def _decode(self, token: int) -> str:
        assert self.tokenizer is not None  # without tags no token is read
        return str(self.tokenizer.decode([token], skip_special_tokens=True))
