"""Agents that a harness is installed for, one folder each."""
