"""Fakes of the outside systems, in memory. The contract suites run on them and on the real ones."""
