"""`python -m tests.recipes.sao_arms [SEED ...]`: what SAO's correction is worth at a lag of eight.

Prints the last tenth's mean reward of each arm (mask, ratio without mask, none) at three learning
rates. Half a minute an arm, rate and seed.
"""

import sys
import tempfile
from pathlib import Path

from reefcommon.recipe_loading import load_recipe
from tests.recipes.bandit import ALL_LINEAR, tenth, train, write_model

ARMS = ("dis", "ratio", "none")
RATES = (3e-4, 4e-4, 1e-3)


def curve(model_path: Path, seed: int, *, steps: int, lag: int = 0, **knobs: object) -> list[float]:
    """Mean reward of each step of SAO on the bandit."""
    defaults = {
        "batch_size": 32,
        "max_staleness": 8,
        "critic_lr": 3e-3,
        "critic_width": 64,
        "lora_r": 64,
        "lora_alpha": 64,
        "target_modules": ALL_LINEAR,
    }
    recipe = load_recipe("recipes.sao.recipe:SAORecipe", {**defaults, "seed": seed, **knobs})
    return train(recipe, model_path, steps=steps, seed=seed, lag=lag)  # type: ignore[arg-type]


def main(seeds: list[int]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model_path = write_model(Path(directory))
        for seed in seeds:
            for rate in RATES:
                for arm in ARMS:
                    rewards = curve(
                        model_path, seed, steps=360, lag=8, policy_lr=rate, correction=arm
                    )
                    sys.stdout.write(f"{rate:g} {arm:<5} seed {seed}: {tenth(rewards, -1):.2f}\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]] or [0])
