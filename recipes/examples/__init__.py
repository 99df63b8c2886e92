"""Recipes outside of the trainer, on the topics alone."""
