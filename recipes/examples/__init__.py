"""Recipes of one's own: outside of the trainer, on the topics alone."""
