"""The evaluator: candidates in, verdicts with their evidence out."""
