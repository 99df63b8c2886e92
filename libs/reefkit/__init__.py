"""The parts of a service: frame, bus, job host, artifacts, release heads, operations endpoint."""
