"""The vocabulary that all of Reef's services share: events, topics, identities, errors, settings, artifacts, releases, recipes.

Nothing here imports torch, vllm or fastapi: a recipe, a test or a third party's consumer can import it in a fraction of a second.
"""
