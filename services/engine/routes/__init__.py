"""The HTTP surface: OpenAI's routes, vLLM's extras, its administration routes."""
