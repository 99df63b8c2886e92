"""The parts that distillation recipes share, in the order of the data."""

# A student p learns from a teacher t that sees more than it does: other weights, or a longer
# prompt. The student answers; the teacher reads the SAME answer under its own prompt; the loss
# pulls the student's distribution at each token of the answer towards the teacher's.
#
# knobs.py        knobs that every one of them has
# messages.py     the messages of a unit's prompt, and a prompt with a demonstration in it (pure)
# tokens.py       a prompt's messages -> ids, by the base model's own template (transformers)
# lessons.py      units -> rollouts with the teacher's prompt and a weight
# divergences.py  two distributions -> nats (torch)
# weights.py      importance weights with a cap (torch)
# comparison.py   hidden states -> divergences, a few positions at a time (torch)
# learner.py      the step
#
# Three settings of it, and a baseline. recipes/openclaw_rl takes its parts for a step of its own.
#
#             teacher                         divergence              importance        average
#     opd     an adapter or a model apart     reverse, sampled        none              no
#     sdft    itself, reading a demonstration forward, all ids        sequence, cap 2   rate 0.01
#     sdpo    itself, reading a sibling       JSD 0.5, top 100, tail  token, cap 2      rate 0.05
#     sft     no teacher: cross-entropy on accepted answers
#
# Shapes are written as suffixes: B rollouts, R response positions, N trained positions of a
# micro-batch, H hidden units, V vocabulary, K kept ids.
