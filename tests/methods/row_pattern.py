"""`python -m tests.methods.row_pattern`: the arms of TTT-Discover on row patterns, 26 circles.

The recipe's own search, grid and verifier, with a context in memory. The policy is a table of 18
independent distributions, the tiny model under the recipe's learner (`--policy tiny`), or a linear
copy of that model (`--policy linear`): its mean hidden states of the places, and the adapter. Prints
JSON: of each arm the best sum found and the mean reward of the last step, per seed and as a mean
with its 95 % interval over seeds (Student's t), and the paired differences of the arms.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from recipes.ttt_discover.demo import DEMONSTRATIONS
from recipes.ttt_discover.recipe import TTTDiscoverRecipe
from reefcommon.config import load
from tests.methods.row_policies import Linear, Model, Policy, Table
from tests.methods.table import student_interval
from tests.recipes.seeking import Answer, FakeSeekContext, World

ARMS = ("frozen", "mean_baseline", "entropic")
TINY_FILE = Path("recipes/ttt_discover/examples/row_pattern/serve.yaml")
# Each arm of the model with its own rate and pull, as the demonstration has them.
ARM_KNOBS = {arm.knobs["algorithm"]: arm.knobs for arm in DEMONSTRATIONS["tiny-count"]().arms}
# Chosen on seed 100 among 0.1, 0.2 and 0.4, where it is the better rate of both arms that learn.
TABLE_LR = 0.2
# Groups and rollouts. The table does not see its parent: all rollouts are a group.
GRID = (1, 64)


class Batched(FakeSeekContext):
    """Answers all questions that wait at the same time as a batch."""

    def __init__(self, world: World, policy: Policy) -> None:
        super().__init__(world)
        self.policy = policy
        self.open: list[tuple[str, int, asyncio.Future[Answer]]] = []

    async def _answer(self, prompt: str, seed: int) -> Answer:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        if not self.open:
            loop.call_soon(self._draw)
        self.open.append((prompt, seed, future))
        return await future

    def _draw(self) -> None:
        asked, self.open = self.open, []
        answers = self.policy.draw(
            [prompt for prompt, _, _ in asked], [seed for _, seed, _ in asked]
        )
        for (_, _, future), answer in zip(asked, answers, strict=True):
            future.set_result(answer)


def knobs_of(arm: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    (binding,) = load(TINY_FILE).reef
    given = {
        **ARM_KNOBS[arm],
        "seed": seed,
        "steps": options.steps,
        "groups_per_step": options.groups,
        "rollouts_per_group": options.rollouts,
    }
    if options.lr is not None:
        given["policy_lr"] = options.lr
    if options.kl is not None:
        given["kl_coef"] = options.kl
    return binding.knobs | given


def policy_of(recipe: TTTDiscoverRecipe, model: Path | None, options: argparse.Namespace) -> Policy:
    knobs = recipe.knobs
    if model is None:
        lr = TABLE_LR if options.lr is None else options.lr
        return Table(knobs.algorithm, lr, options.kl or 0.0)
    whole = Model(recipe, model)
    if options.policy == "tiny":
        return whole
    return Linear(knobs.algorithm, knobs.policy_lr, knobs.kl_coef, knobs.seed, whole.hidden())


def run(arm: str, seed: int, options: argparse.Namespace, model: Path | None) -> dict[str, Any]:
    recipe = TTTDiscoverRecipe(TTTDiscoverRecipe.knobs_type(**knobs_of(arm, seed, options)))
    policy = policy_of(recipe, model, options)
    world = World(recipe, scenario="row-pattern", train=policy.train)
    ctx, began = Batched(world, policy), time.perf_counter()
    asyncio.run(recipe.seek(ctx))
    history = world.committed["search"]["history"]
    return {
        "arm": arm,
        "seed": seed,
        "best": history[-1]["best"],
        "best_at_10": history[min(9, len(history) - 1)]["best"],
        "mean": history[-1]["mean"],
        "valid_first": history[0]["valid"],
        "valid_last": history[-1]["valid"],
        "verifier_calls": len(world.reports),
        "trained_steps": len(world.trained),
        "seconds": round(time.perf_counter() - began, 1),
        "text": best_text(world),
    }


def best_text(world: World) -> str:
    nodes = [n for n in world.committed["search"]["archive"]["nodes"] if not n["seed"]]
    best = max(nodes, key=lambda node: node["solution"]["value"], default=None)
    return "" if best is None else best["solution"]["text"]


def interval(values: Sequence[float]) -> dict[str, float]:
    """Mean and 95 % interval over seeds."""
    if len(values) < 2:
        return {"mean": fmean(values)}
    shown = zip(("mean", "low", "high"), student_interval(values), strict=True)
    return {name: round(value, 4) for name, value in shown}


def summary(runs: Sequence[dict[str, Any]], arms: Sequence[str]) -> dict[str, Any]:
    by_arm = {arm: [one for one in runs if one["arm"] == arm] for arm in arms}
    figures = {
        arm: {
            name: interval([one[name] for one in rows]) for name in ("best", "best_at_10", "mean")
        }
        for arm, rows in by_arm.items()
    }
    differences = {
        f"{arm} - {other}": interval(
            [a["best"] - b["best"] for a, b in zip(by_arm[arm], by_arm[other], strict=True)]
        )
        for arm in arms
        for other in arms
        if arms.index(other) < arms.index(arm)
    }
    return {"arms": figures, "differences_of_best": differences}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--groups", type=int)
    parser.add_argument("--rollouts", type=int)
    parser.add_argument("--policy", choices=["tabular", "linear", "tiny"], default="tabular")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--kl", type=float)
    options = parser.parse_args(arguments)
    arms, seeds = options.arms.split(","), [int(seed) for seed in options.seeds.split(",")]
    if unknown := set(arms) - set(ARMS):
        parser.error(f"unknown arms: {', '.join(sorted(unknown))}")
    groups, rollouts = GRID
    options.groups, options.rollouts = options.groups or groups, options.rollouts or rollouts
    runs = []
    with tempfile.TemporaryDirectory() as cache:
        model = None
        if options.policy != "tabular":
            from reefstack.models import prepare

            model = prepare(load(TINY_FILE).model.name, Path(cache))
        for seed in seeds:
            for arm in arms:
                runs.append(run(arm, seed, options, model))
                sys.stderr.write(json.dumps(runs[-1]) + "\n")
    whole = {"command": f"python -m tests.methods.row_pattern {' '.join(arguments or sys.argv[1:])}",
             "runs": runs, **summary(runs, arms)}  # fmt: skip
    sys.stdout.write(json.dumps(whole, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
