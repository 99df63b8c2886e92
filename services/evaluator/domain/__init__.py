"""Pure decisions of the evaluator: tasks and scores, replayed evidence, the rules that select."""
