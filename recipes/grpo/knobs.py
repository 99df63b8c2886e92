"""The knobs of GRPO."""

from recipes.policy_gradient.knobs import GroupKnobs, PolicyGradientKnobs


class Knobs(GroupKnobs, PolicyGradientKnobs):
    """A group of `group_size` rollouts takes the place of a critic."""
