"""The vocabulary of all services: events, topics, ids, errors, settings, artifacts, recipes.

Nothing here imports torch, vllm or fastapi: a consumer imports it in a fraction of a second.
"""
