"""TTT-Discover: the policy is trained on one problem while it searches."""

# In the order of the data:
#
# problem.py     what a problem is: prompts, a verifier, a picture
# archive.py     solutions found so far, and which of them to go on from (pure)
# search.py      the state of a search between two steps, `pending` then `committed` (pure)
# recipe.py      ask, verify, report, learn, publish
# grid.py        reports -> the complete grid of a step, or why it is discarded (pure)
# advantages.py  rewards -> advantages (pure)
# learner.py     the step (torch)
# examples/      problems; circles in a square have their verifier and picture there
