"""`python -m tests.methods.row_pattern`: the arms of TTT-Discover on row patterns, 26 circles.

The recipe's own search, grid and verifier, with a context in memory. The policy is a table of 18
independent distributions, or the tiny model under the recipe's learner (`--policy tiny`). Prints
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
from typing import Any, Protocol

import numpy as np

from recipes.ttt_discover.advantages import entropic, informative, mean_baseline
from recipes.ttt_discover.examples.row_pattern.pattern import DIGITS, LENGTH
from recipes.ttt_discover.recipe import TTTDiscoverRecipe
from reefcommon.config import load
from reefcommon.events import Sampling
from reefcommon.statistics import student_interval
from tests.recipes.seeking import Answer, FakeSeekContext, World

ARMS = ("frozen", "mean_baseline", "entropic")
TINY_FILE = Path("recipes/ttt_discover/examples/row_pattern/serve.yaml")
# Chosen on seed 100 among 0.1, 0.2 and 0.4, where it is the better rate of both arms that learn.
TABLE_LR = 0.2
# Groups and rollouts. The table does not see its parent: all rollouts are a group.
GRIDS = {"tabular": (1, 64), "tiny": (1, 64)}


class Policy(Protocol):
    def draw(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[Answer]: ...
    def train(self, batch: Sequence[Any]) -> None: ...


class Table:
    """A distribution over the digits for each of the 18 places; Adam on the same advantages."""

    def __init__(self, arm: str, lr: float) -> None:
        self.logits = np.zeros((LENGTH, len(DIGITS)))
        self.credit = entropic if arm == "entropic" else mean_baseline
        self.lr, self.steps = lr, 0
        self.first, self.second = np.zeros_like(self.logits), np.zeros_like(self.logits)

    def draw(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[Answer]:
        ends = self._shares().cumsum(axis=1)
        answers = []
        for seed in seeds:
            uniform = np.random.default_rng(seed).random((LENGTH, 1)) * ends[:, -1:]
            chosen = (uniform >= ends).sum(axis=1)
            text = "".join(DIGITS[i] for i in chosen)
            answers.append(Answer(text, {"tokens": (0, *chosen.tolist()), "prompt_length": 1,
                                         "loss_mask": (1,) * LENGTH,
                                         "logprobs": (-1.0,) * LENGTH}))  # fmt: skip
        return answers

    def train(self, batch: Sequence[Any]) -> None:
        groups: dict[int, list[Any]] = {}
        for unit in batch:
            groups.setdefault(unit.metadata["group"], []).append(unit)
        kept, _ = informative({g: [u.score for u in units] for g, units in groups.items()})
        shares, gradient = self._shares(), np.zeros_like(self.logits)
        places = np.arange(LENGTH)
        for group in kept:
            units = groups[group]
            credits_ = self.credit([unit.score for unit in units])
            for unit, advantage in zip(units, credits_, strict=True):
                gradient -= advantage * shares
                gradient[places, list(unit.tokens[1:])] += advantage
        self._ascend(gradient)

    def _shares(self) -> np.ndarray:
        weights = np.exp(self.logits - self.logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    def _ascend(self, gradient: np.ndarray) -> None:
        self.steps += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.95 * self.second + 0.05 * gradient**2
        mean, scale = self.first / (1 - 0.9**self.steps), self.second / (1 - 0.95**self.steps)
        self.logits += self.lr * mean / (np.sqrt(scale) + 1e-8)


class Model:
    """A served model under the recipe's own learner."""

    def __init__(self, recipe: TTTDiscoverRecipe, path: Path) -> None:
        from transformers import AutoTokenizer

        self.learner: Any = recipe.learner(path)
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.allowed = tuple(recipe.knobs.allowed_token_ids)
        assert [self.tokenizer.decode([i]) for i in self.allowed] == list(DIGITS)

    def draw(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[Answer]:
        answers: dict[int, Answer] = {}
        tokens = [self._tokens(prompt) for prompt in prompts]
        for length in sorted({len(row) for row in tokens}):
            rows = [i for i, row in enumerate(tokens) if len(row) == length]
            drawn = self._generate([tokens[i] for i in rows], [seeds[i] for i in rows])
            answers |= dict(zip(rows, drawn, strict=True))
        return [answers[i] for i in range(len(prompts))]

    def train(self, batch: Sequence[Any]) -> None:
        self.learner.step(batch)

    def _tokens(self, prompt: str) -> list[int]:
        messages = [{"role": "user", "content": prompt}]
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _generate(self, prompts: list[list[int]], seeds: Sequence[int]) -> list[Answer]:
        import torch

        model = self.learner.policy.causal
        draws = torch.tensor(np.array([np.random.default_rng(s).random(LENGTH) for s in seeds]))
        ids, past = torch.tensor(prompts), None
        chosen, logps, fed = [], [], ids
        with torch.no_grad():
            for place in range(LENGTH):
                # By position: the cache's name differs between versions of transformers.
                out = model(fed, None, None, past, use_cache=True)
                past = out.past_key_values
                logp = torch.log_softmax(out.logits[:, -1, list(self.allowed)].double(), -1)
                ends = logp.exp().cumsum(-1)
                pick = torch.searchsorted(ends, draws[:, place : place + 1] * ends[:, -1:])
                chosen.append(pick)
                logps.append(logp.gather(1, pick))
                fed = torch.tensor(self.allowed)[pick]
        picks, logp = torch.cat(chosen, 1).tolist(), torch.cat(logps, 1).tolist()
        mask = Sampling(allowed_token_ids=self.allowed)
        return [
            Answer(
                "".join(DIGITS[i] for i in row),
                {
                    "tokens": (*prompt, *(self.allowed[i] for i in row)),
                    "prompt_length": len(prompt),
                    "loss_mask": (1,) * LENGTH,
                    "logprobs": tuple(min(x, 0.0) for x in scores),
                    "sampling": (mask,),
                },
            )
            for prompt, row, scores in zip(prompts, picks, logp, strict=True)
        ]


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
        "algorithm": arm,
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


def run(arm: str, seed: int, options: argparse.Namespace, model: Path | None) -> dict[str, Any]:
    recipe = TTTDiscoverRecipe(TTTDiscoverRecipe.knobs_type(**knobs_of(arm, seed, options)))
    lr = TABLE_LR if options.lr is None else options.lr
    policy: Policy = Table(arm, lr) if model is None else Model(recipe, model)
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
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--groups", type=int)
    parser.add_argument("--rollouts", type=int)
    parser.add_argument("--policy", choices=["tabular", "tiny"], default="tabular")
    parser.add_argument("--lr", type=float)
    parser.add_argument("--kl", type=float)
    options = parser.parse_args(arguments)
    arms, seeds = options.arms.split(","), [int(seed) for seed in options.seeds.split(",")]
    if unknown := set(arms) - set(ARMS):
        parser.error(f"unknown arms: {', '.join(sorted(unknown))}")
    groups, rollouts = GRIDS[options.policy]
    options.groups, options.rollouts = options.groups or groups, options.rollouts or rollouts
    runs = []
    with tempfile.TemporaryDirectory() as cache:
        model = None
        if options.policy == "tiny":
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
