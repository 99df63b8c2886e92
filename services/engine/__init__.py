"""The embedded serving node: an OpenAI server in vLLM's dialect, on torch CPU."""
