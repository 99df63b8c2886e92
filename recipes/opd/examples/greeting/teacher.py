"""`python -m recipes.opd.examples.greeting.teacher MODEL DIRECTORY`: make the teacher.

It is an adapter of the model in the directory MODEL, and greets with Hello alone.
"""

import random
import sys
from pathlib import Path

from recipes.distillation.greeting import RARE, TRAIN
from recipes.distillation.tokens import PromptTokenizer
from recipes.policy_gradient.knobs import ALL_PROJECTIONS
from recipes.sft.knobs import Knobs
from reefcommon.demonstration import as_messages
from reefcommon.events import SampleReady, utc_now

STEPS, BATCH = 60, 8
# Of another rank than the student's.
MODULES = (*ALL_PROJECTIONS, "lm_head")
KNOBS = Knobs(lora_r=16, lora_alpha=32, target_modules=MODULES, policy_lr=4e-3)


def lesson(tokens: PromptTokenizer, question: str) -> SampleReady:
    prompt, answer = tokens.prompt(as_messages(question)), tokens.answer(RARE)
    now = utc_now()
    return SampleReady(
        event_id=f"lesson-{question}",
        at=now,
        recorded_at=now,
        scenario="teacher",
        record_ids=(),
        tokens=(*prompt, *answer),
        prompt_length=len(prompt),
        loss_mask=(1,) * len(answer),
        logprobs=(0.0,) * len(answer),
        score=1.0,
    )


def teach(model: Path, directory: Path) -> None:
    """Write the adapter. Blocks for some seconds."""
    from recipes.sft.learner import SFTLearner  # torch

    learner, draw = SFTLearner(KNOBS, model), random.Random(0)
    for _ in range(STEPS):
        learner.step([lesson(learner.tokens, one) for one in draw.sample(TRAIN, BATCH)])
    learner.export(directory)


if __name__ == "__main__":
    teach(Path(sys.argv[1]), Path(sys.argv[2]))
