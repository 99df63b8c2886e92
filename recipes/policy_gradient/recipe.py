"""The base of recipes that train an adapter."""

from recipes.policy_gradient.knobs import PolicyKnobs
from reefcommon.recipe import WeightRecipe


class AdapterRecipe(WeightRecipe):
    knobs: PolicyKnobs

    def proposes(self, step: int) -> bool:
        return step > 0 and step % self.knobs.candidate_every == 0
