"""Guidance: the policy advises a frozen executor, and is rewarded for the executor's solutions."""
