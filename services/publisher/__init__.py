"""Publishes releases: stages a winner, moves the head, announces it."""
