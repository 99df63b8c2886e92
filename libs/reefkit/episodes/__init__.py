"""Runs of agents on tasks, each in a home and a folder of its own."""
