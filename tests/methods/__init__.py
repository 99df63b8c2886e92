"""Experiments: one command a claim, arms at an equal budget, several seeds, a JSON table."""
