"""The parts that recipes for the harness share: how they show experience, and whom they ask."""
