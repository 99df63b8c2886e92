"""`python -m tests.methods.sdft`: which of two ways to learn a second skill forgets less of the first.

A tiny model knows skill A. It learns skill B from demonstrations: by SFT on their tokens, or by SDFT,
which only reads them. A is measured when B first reaches 0.8, and after all steps. Both see as many
demonstrations a step; learning rates are tried for both.
"""

import tempfile
from pathlib import Path

from transformers import LlamaForCausalLM

from reefcommon.recipe_loading import load_recipe
from tests.methods.table import arm, paired, parsed, show, tell
from tests.recipes.guided import ADAPTER, SKILL_A, SKILL_B, TEMPLATE, learn, rate, warm_start

GAIN = 0.8
BATCH = 16
RECIPES = {
    "sft": ("recipes.sft.recipe:SFTRecipe", {"target": "demonstration"}),
    "sdft": ("recipes.sdft.recipe:SDFTRecipe", {"template": TEMPLATE, "skip_tokens": 0}),
}


def run(base: Path, name: str, policy_lr: float, seed: int, steps: int) -> dict[str, float]:
    """A and B at equal gain, and at the end."""
    dotted, knobs = RECIPES[name]
    recipe = load_recipe(
        dotted, {**ADAPTER, **knobs, "batch_size": BATCH, "policy_lr": policy_lr, "seed": seed}
    )
    learner = recipe.learner(base)
    done = learn(recipe, base, SKILL_B, steps=steps, seed=seed, learner=learner, watch=SKILL_A)
    reached = next((i for i, b in enumerate(done.rates) if b >= GAIN), None)
    at = len(done.rates) - 1 if reached is None else reached
    return {
        "B at gain": done.rates[at],
        "A at gain": done.watched[at],
        "B at end": done.rates[-1],
        "A at end": done.watched[-1],
        "updates to gain": float(steps if reached is None else reached + 1),
    }


def main() -> None:
    options = parsed(__doc__, steps=60, rates=(1e-3, 3e-3))
    table: dict[str, object] = {"demonstrations of each arm": options.steps * BATCH}
    with tempfile.TemporaryDirectory() as directory:
        base = warm_start(Path(directory), right=SKILL_A, share=1.0)
        table["A before"] = rate(LlamaForCausalLM.from_pretrained(base), SKILL_A)
        for policy_lr in options.rates:
            kept = {}
            for name in RECIPES:
                found = {}
                for seed in options.seeds:
                    found[seed] = run(base, name, policy_lr, seed, options.steps)
                    tell(f"{policy_lr:g} {name} seed {seed}: {found[seed]}")
                table[f"{name} at {policy_lr:g}"] = arm(found)
                kept[name] = [figures["A at gain"] for figures in found.values()]
            table[f"A kept, sdft - sft at {policy_lr:g}"] = paired(kept["sdft"], kept["sft"])
    show(table)


if __name__ == "__main__":
    main()
