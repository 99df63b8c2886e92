"""Reef in containers."""
