"""Recipes outside of a host: on the topics alone, or over HTTP."""
