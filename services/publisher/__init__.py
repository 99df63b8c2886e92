"""Publishes releases: stages a verdict's winner on the nodes, moves the head, announces it."""
