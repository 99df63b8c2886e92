"""The HTTP surface: OpenAI's routes, vLLM's extras and its administration routes."""
