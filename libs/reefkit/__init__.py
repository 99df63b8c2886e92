"""What services are made of: bus, background work, artifacts, release heads, operations endpoint."""
