"""The parts of a service: bus, background work, artifacts, release heads, operations endpoint."""
