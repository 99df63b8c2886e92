"""Model directories: real small weights, and a tiny random model for tests."""

from reefstack.models.prepare import NAMES, UnknownModelError, check, default_cache_dir, prepare

__all__ = ["NAMES", "UnknownModelError", "check", "default_cache_dir", "prepare"]
