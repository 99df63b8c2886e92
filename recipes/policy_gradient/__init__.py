"""What policy-gradient recipes share, in the order of the data.

rollouts.py   samples -> checked rollouts; admission by staleness (pure)
returns.py    rewards and values -> advantages and returns (pure)
losses.py     advantages and log-probabilities -> scalar losses (torch)
policy.py     a LoRA policy on a frozen causal language model (torch, peft)
critic.py     a value head on the policy's hidden states (torch)
learner.py    one step over them: micro-batches, metrics, the step's number (torch)
"""
