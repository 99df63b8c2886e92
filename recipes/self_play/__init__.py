"""Self-play: a designer proposes tasks, a solver plays them, both are one model."""

# In the order of the data:
#
# domain.py     a kind of tasks: prompts of both roles, how a proposal is read, how it is scored
# pool.py       regret and bands of the tasks that were played (pure)
# game.py       the state between two rounds, `pending` then `committed` (pure)
# recipe.py     propose, check, play, report, learn
# admission.py  reports -> the complete batch of a round, or why it is discarded (pure)
# learner.py    the step (torch)
