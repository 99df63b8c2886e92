"""`python -m tests.methods.opd`: a teacher's probabilities against a score for the whole answer.

A tiny model guesses four digits: its rate of right codes is about 1e-4. A teacher is an adapter that
was shown the codes. OPD asks the teacher; SAO gets 1 for a right code. Both sample as many answers.
"""

import tempfile
from pathlib import Path

from transformers import LlamaForCausalLM

from reefcommon.recipe_loading import load_recipe
from tests.methods.table import arm, paired, parsed, show, tell
from tests.recipes.guided import ADAPTER, learn, rate, warm_start

CODES = {"a": "3719", "b": "8042", "c": "5560", "d": "1983"}
BATCH, TEACHER_STEPS = 64, 100


def teacher(base: Path, directory: Path, seed: int) -> float:
    """Write an adapter that knows the codes; its rate of right codes."""
    knobs = {**ADAPTER, "batch_size": 32, "target": "demonstration", "seed": 100 + seed}
    recipe = load_recipe("recipes.sft.recipe:SFTRecipe", knobs)
    taught = learn(recipe, base, CODES, steps=TEACHER_STEPS, seed=100 + seed)
    taught.learner.export(directory)
    return taught.rates[-1]


def arms(base: Path, seed: int, steps: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as scratch:
        taught = teacher(base, Path(scratch), seed)
        recipes = {
            "opd": ("recipes.opd.recipe:OPDRecipe", {"teacher": scratch}),
            "sao": (
                "recipes.sao.recipe:SAORecipe",
                {"critic_lr": 3e-3, "critic_warmup_steps": 2},
            ),
        }
        found = {}
        for name, (dotted, knobs) in recipes.items():
            recipe = load_recipe(dotted, {**ADAPTER, "batch_size": BATCH, "seed": seed, **knobs})
            learner = recipe.learner(base)
            before = rate(learner.policy.model, CODES)
            run = learn(recipe, base, CODES, steps=steps, seed=seed, learner=learner)
            after = run.rates[-1]
            found[name] = {
                "after": after,
                "teacher": taught,
                "of the teacher": min(after / taught, 1),
            }
            tell(f"seed {seed} {name}: {before:.5f} -> {after:.4f}, teacher {taught:.3f}")
    return found


def main() -> None:
    options = parsed(__doc__, steps=150)
    with tempfile.TemporaryDirectory() as directory:
        base = warm_start(Path(directory), digits=4)
        base_rate = rate(LlamaForCausalLM.from_pretrained(base), CODES)
        found = {seed: arms(base, seed, options.steps) for seed in options.seeds}
    after = {name: [found[s][name]["after"] for s in found] for name in ("opd", "sao")}
    show(
        {
            "answers of each arm": options.steps * BATCH,
            "rate before": base_rate,
            **{name: arm({s: found[s][name] for s in found}) for name in after},
            "opd - sao": paired(after["opd"], after["sao"]),
        }
    )


if __name__ == "__main__":
    main()
