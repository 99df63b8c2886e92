"""Pure decisions of the evaluator: what an episode is, what a score means, which rule selects."""
