"""Codex, a coding agent for the terminal that speaks OpenAI's Responses."""
