"""The vocabulary of all services. It imports no torch, vllm or fastapi."""
