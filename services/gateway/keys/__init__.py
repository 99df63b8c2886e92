"""Idempotency keys: each key has a single upstream call, record and answer."""
