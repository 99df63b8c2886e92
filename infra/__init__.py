"""Reef in containers: the image, its one-shot jobs, the configuration around it."""
