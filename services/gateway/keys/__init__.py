"""Idempotency keys: one upstream call, one record, one answer for each key."""
