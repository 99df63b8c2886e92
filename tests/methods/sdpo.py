"""`python -m tests.methods.sdpo`: SDPO against GRPO on equal attempts and scores.

A tiny model is right in a tenth, or in a third, of its attempts at first. Each arm has the same
number of attempts, in groups of eight, and the best of its learning rates on three seeds apart.
"""

import tempfile
from pathlib import Path
from statistics import fmean

from reefcommon.recipe_loading import load_recipe
from tests.methods.table import arm, paired, parsed, show, tell
from tests.recipes.guided import ADAPTER, SKILL_A, TEMPLATE, Run, learn, warm_start

SHARES = (0.1, 0.3)
APART = (1000, 1001, 1002)  # the seeds on which learning rates are chosen
GROUPS = {"batch_size": 32, "group_size": 8}
RECIPES = {
    "sdpo": ("recipes.sdpo.recipe:SDPORecipe", {"template": TEMPLATE, "top_k": 8}),
    "grpo": ("recipes.grpo.recipe:GRPORecipe", {}),
}


def run(base: Path, name: str, policy_lr: float, seed: int, steps: int) -> Run:
    dotted, knobs = RECIPES[name]
    recipe = load_recipe(
        dotted, {**ADAPTER, **GROUPS, **knobs, "policy_lr": policy_lr, "seed": seed}
    )
    return learn(recipe, base, SKILL_A, steps=steps, seed=seed, group=8)


def main() -> None:
    options = parsed(__doc__, steps=60, rates=(1e-3, 3e-3))
    table: dict[str, object] = {"attempts of each arm": options.steps * 32}
    for share in SHARES:
        with tempfile.TemporaryDirectory() as directory:
            base = warm_start(Path(directory), right=SKILL_A, share=share)
            whole = {}
            for name in RECIPES:
                tried = {
                    lr: fmean(
                        fmean(run(base, name, lr, apart, options.steps).rates) for apart in APART
                    )
                    for lr in options.rates
                }
                best = max(tried, key=tried.__getitem__)
                found = {}
                for seed in options.seeds:
                    rates = run(base, name, best, seed, options.steps).rates
                    found[seed] = {"first": rates[0], "mean": fmean(rates), "last": rates[-1]}
                    tell(f"right at first {share}, {name} at {best:g}, seed {seed}: {found[seed]}")
                table[f"{name}, right at first {share}"] = {"learning rate": best, **arm(found)}
                whole[name] = [figures["mean"] for figures in found.values()]
            table[f"mean rate, sdpo - grpo, {share}"] = paired(whole["sdpo"], whole["grpo"])
    show(table)


if __name__ == "__main__":
    main()
