"""Merge the many small objects of the embedded log."""
