"""`python -m tests.methods.self_play`: tasks that a designer proposes against tasks by chance.

A tiny model knows the codes of half of the letters, can learn a quarter, and can never write the
rest (`tests/recipes/letters.py`). All arms have as many answers of the model, proposals and hinted
plays included:

    self_play       designer and solver are trained
    untrained       the same game, but only the solver is trained
    uniform         letters by chance; proposals and hinted plays become plays that train
    uniform_same    letters by chance, as many plays a task as in self-play

The figures are the probability of the right code of the letters that can be learned: its mean over
the run, halfway, and at the end.
"""

import argparse
import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from recipes.self_play.recipe import SelfPlayRecipe
from reefcommon.events import Sampling
from tests.methods.row_pattern import Batched
from tests.methods.table import arm, paired, show, tell
from tests.recipes.bandit import ALL_LINEAR
from tests.recipes.letters import (
    ALLOWED,
    CHARACTERS,
    KNOWN,
    LEARNABLE,
    SIZE,
    START,
    designs,
    ids,
    rate,
    warm_start,
)
from tests.recipes.seeking import Answer, World

COUNT, PLAYS, HINTS = 8, 4, 2
ROUND = COUNT * (1 + PLAYS + HINTS)  # calls of a round at most
GAME = {"plays": PLAYS, "hint_plays": HINTS}
ARMS: dict[str, dict[str, Any]] = {
    "self_play": GAME,
    "untrained": {**GAME, "share": "solver_only"},
    "uniform": {"proposer": "uniform", "plays": 1 + PLAYS + HINTS, "hint_plays": 0},
    "uniform_same": {"proposer": "uniform", "plays": PLAYS, "hint_plays": 0},
}


class Player:
    """The served model under the recipe's own learner."""

    def __init__(self, learner: Any) -> None:
        self.learner, self.model = learner, learner.policy.model

    def draw(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[Answer]:
        answers: dict[int, Answer] = {}
        for length in sorted({len(prompt) for prompt in prompts}):
            for role in ("designer", "solver"):
                rows = [
                    i
                    for i, prompt in enumerate(prompts)
                    if len(prompt) == length and (prompt[0] == "=") == (role == "designer")
                ]
                if rows:
                    some = self._generate(
                        role, [prompts[i] for i in rows], [seeds[i] for i in rows]
                    )
                    answers |= dict(zip(rows, some, strict=True))
        return [answers[i] for i in range(len(prompts))]

    def train(self, batch: Sequence[Any]) -> None:
        self.learner.step(batch)

    @torch.no_grad()
    def _generate(self, role: str, prompts: list[str], seeds: Sequence[int]) -> list[Answer]:
        allowed, length = ALLOWED[role], 1 if role == "designer" else SIZE
        ends = torch.tensor(np.array([np.random.default_rng(s).random(length) for s in seeds]))
        tokens = torch.tensor([(START, *ids(prompt)) for prompt in prompts])
        logps = []
        for place in range(length):
            logits = self.model(input_ids=tokens).logits[:, -1, list(allowed)].double()
            logp = torch.log_softmax(logits, -1)
            sums = logp.exp().cumsum(-1)
            pick = torch.searchsorted(sums, ends[:, place : place + 1] * sums[:, -1:])
            logps.append(logp.gather(1, pick))
            tokens = torch.cat([tokens, torch.tensor(allowed)[pick]], dim=1)
        return [
            Answer(
                "".join(CHARACTERS[i] for i in row[-length:]),
                {
                    "tokens": tuple(row),
                    "prompt_length": len(row) - length,
                    "loss_mask": (1,) * length,
                    "logprobs": tuple(min(x, 0.0) for x in scores),
                    "sampling": (Sampling(allowed_token_ids=allowed),),
                },
            )
            for row, scores in zip(tokens.tolist(), torch.cat(logps, 1).tolist(), strict=True)
        ]


class EnoughCalls(Exception):
    """The budget of an arm is used up."""


class Measured(Batched):
    """Measures the policy after each round, and ends at the budget."""

    def __init__(self, world: World, policy: Player, budget: int) -> None:
        super().__init__(world, policy)
        self.budget = budget
        self.curve: list[tuple[int, float]] = [(0, rate(policy.model, LEARNABLE))]

    async def learned(self, receipts: Sequence[str]) -> Any:
        outcome = await super().learned(receipts)
        self.curve.append((len(self.world.asked), rate(self.policy.model, LEARNABLE)))  # type: ignore[attr-defined]
        if len(self.world.asked) >= self.budget:
            raise EnoughCalls
        return outcome


def at(curve: Sequence[tuple[int, float]], calls: float) -> float:
    """The rate after so many calls, linear between two rounds."""
    return float(np.interp(calls, [n for n, _ in curve], [rate for _, rate in curve]))


def run(
    base: Path, name: str, policy_lr: float, seed: int, rounds: int, entropy: float = 0.0
) -> dict[str, float]:
    knobs = {
        **ARMS[name],
        "domain": "tests.recipes.letters:DOMAIN",
        "rounds": 10**6,
        "count": COUNT,
        "frontier_shown": 3,
        "policy_lr": policy_lr,
        "entropy_coef": entropy,
        "target_modules": ALL_LINEAR,
        "lora_r": 16,
        "seed": seed,
    }
    recipe = SelfPlayRecipe(SelfPlayRecipe.knobs_type(**knobs))
    player, budget = Player(recipe.learner(base)), rounds * ROUND
    ctx = Measured(World(recipe, scenario="letters", train=player.train), player, budget)
    with suppress(EnoughCalls):
        asyncio.run(recipe.seek(ctx))
    grid = [at(ctx.curve, budget * share) for share in np.linspace(0, 1, 101)]
    plays = [one for one in ctx.world.requests if one["tags"].get("role") == "solver"]
    half = plays[len(plays) // 2 :]
    spent = Counter(one["prompt"][0] in LEARNABLE for one in half)
    shares = designs(player.model)
    return {
        "calls": float(len(ctx.world.asked)),
        "first": grid[0],
        "halfway": grid[50],
        "last": grid[100],
        "mean": fmean(grid),
        "calls to 0.8, of the budget": next((i / 100 for i, x in enumerate(grid) if x >= 0.8), 1.0),
        "plays of learnable letters, second half": spent[True] / max(len(half), 1),
        "designs of learnable letters, last": sum(shares[letter] for letter in LEARNABLE),
        "known codes, last": rate(player.model, KNOWN),
        "updates": float(len(ctx.world.trained)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60, help="whole rounds that the calls pay for")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--entropy", type=float, default=0.03, help="its weight as a reward")
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time")
    parser.add_argument("--base", type=Path, help="the warm-started model; kept for other runs")
    options = parser.parse_args()
    found: dict[str, dict[int, dict[str, float]]] = {name: {} for name in options.arms}
    with tempfile.TemporaryDirectory() as directory:
        base = options.base or Path(directory)
        if not (base / "model.safetensors").exists():
            warm_start(base)
        with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
            runs = {
                (name, seed): pool.submit(
                    run, base, name, options.lr, seed, options.steps, options.entropy
                )
                for seed in options.seeds
                for name in options.arms
            }
            for (name, seed), future in runs.items():
                found[name][seed] = future.result()
                tell(f"{name}, seed {seed}: {found[name][seed]}")
    table: dict[str, Any] = {"calls of each arm": options.steps * ROUND, "lr": options.lr}
    table["entropy"] = options.entropy
    table |= {name: arm(figures) for name, figures in found.items()}
    first, *others = options.arms
    for other in others:
        for figure in ("mean", "last"):
            pairs = ([one[figure] for one in found[name].values()] for name in (first, other))
            table[f"{figure} rate, {first} - {other}"] = paired(*pairs)
    show(table)


if __name__ == "__main__":
    main()
