"""Hours of light load on the real embedded stack: does anything grow that should not?

`python -m tests.soak --help`
"""
