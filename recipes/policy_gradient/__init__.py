"""The parts that policy-gradient recipes share, in the order of the data."""

# knobs.py      knobs that every one of them has
# seeking.py    work side by side, and the state of a seeker
# barrier.py    rounds of a seeker -> a batch, or none (pure)
# rollouts.py   samples -> checked rollouts; admission by staleness, score and sampling (pure)
# returns.py    rewards and values -> advantages and returns (pure)
# losses.py     advantages and log-probabilities -> scalar losses (torch)
# forward.py    padded batches and the forward over their responses (torch)
# policy.py     a LoRA policy on a frozen causal language model (torch, peft)
# frozen.py     copies of the policy that do not learn, on the same base weights (torch, peft)
# critic.py     a value head on the policy's hidden states (torch)
# learner.py    saved state and metrics of a step (torch)
# recipe.py     the base of recipes that train an adapter (pure)
#
# Shapes are written as suffixes: B rollouts, P prompt positions, R response positions, H hidden
# units, V vocabulary, N action tokens of all rollouts. `x_BR` is a tensor of shape [B, R].
