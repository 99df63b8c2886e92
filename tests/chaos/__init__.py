"""Kills and outages under load, on the real embedded stack, and a checker that states what held.

python -m tests.chaos --seed 1 --faults 50
"""
