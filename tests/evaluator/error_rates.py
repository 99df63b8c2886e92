"""`python -m tests.evaluator.error_rates`: what the gate's rules cost and save, by simulation.

First whole runs: each candidate's true rate is its head's, moved by a normal step in logits; both
sides answer the same tasks six times. Compared are the error per comparison, per head, and per run.
Then equals: ten candidates of one head, a comparison by the loosest rule, and comparisons by replay
whose likelihoods move by prompt. Takes a minute.
"""

import random
import sys
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from reefcommon.events import TaskResult
from reefcommon.statistics import mean_interval, sign_flip_test
from services.evaluator.domain.policies import Rule, decide
from services.evaluator.domain.replay import HeldOut, scored_pairs

RUNS, ANSWERS, ALPHA = 400, 6, 0.1
STEPS = {12: ((0.5, -1.5), (0.35, -1.5), (0.2, -1.5), (0.0, 0.0), (-0.1, 0.0), (-0.3, 0.0))}
STEPS |= dict.fromkeys((24, 48, 100), ((0.35, -1.5),))
Floats = NDArray[np.float64]


def p_values(effects: Floats) -> Floats:
    """The exact sign-flip test of each row of whole numbers of 1/ANSWERS, by Fourier inversion."""
    sizes = np.rint(effects * ANSWERS).astype(int)
    total = sizes.sum(1)
    values = np.arange(-(most := ANSWERS * effects.shape[1]), most + 1)
    angles = 2 * np.pi * np.arange(values.size) / values.size
    characteristic = np.ones((len(sizes), values.size))
    for size in range(1, ANSWERS + 1):
        characteristic *= np.cos(size * angles) ** (abs(sizes) == size).sum(1)[:, None]
    at = np.fft.fftshift(np.fft.ifft(characteristic).real, axes=1)
    p = np.where(values >= total[:, None], at, 0.0).sum(1)
    return np.where(total > 0, p, 1.0)


def run(per: str, tasks: int, step: float, start: float, candidates: int) -> str:
    draw = np.random.default_rng([tasks, round(step * 100) + 100])
    head, hard = np.full(RUNS, start), draw.normal(0, 1, (RUNS, tasks))
    looks, released = np.zeros(RUNS), np.zeros(RUNS)
    reached = np.zeros(RUNS, dtype=bool)

    def rate(logit: Floats) -> Floats:
        return 1 / (1 + np.exp(-logit[:, None] - hard))

    for number in range(1, candidates + 1):
        candidate = head + draw.normal(step, 0.25, RUNS)
        ours, heads = (draw.binomial(ANSWERS, rate(side)) / ANSWERS for side in (candidate, head))
        looks += 1
        k = {"comparison": np.full(RUNS, np.sqrt(6) / np.pi), "head": looks}.get(per, number)
        won = p_values(ours - heads) <= ALPHA * 6 / (np.pi * k) ** 2
        head, looks, released = (
            np.where(won, candidate, head),
            np.where(won, 0, looks),
            released + won,
        )
        reached |= rate(head).mean(1) >= 0.9
    mean = rate(head).mean()
    return (
        f"mean reward {mean:.2f}, above 0.9 in {reached.mean():.0%}, releases {released.mean():.1f}"
    )


def clusters(comparisons: int = 1000) -> dict[str, list[float]]:
    """False releases by replay: pairs that are prompts, and pairs that are samples."""
    draw, found = random.Random(7), {"by prompt": [], "by sample": []}
    for _ in range(comparisons):
        rates = [(p, draw.choice((0.05, 0.5, 0.95)), draw.randrange(1, 6)) for p in range(20)]
        scores = [(p, float(draw.random() < rate)) for p, rate, n in rates for _ in range(n)]
        moved = [draw.gauss(-1, 0.05) for _ in rates]
        ours = {str(i): moved[p] + draw.gauss(0, 0.03) for i, (p, _) in enumerate(scores)}
        for name, released in found.items():
            samples = [
                HeldOut(
                    sample_id=str(i),
                    score=score,
                    tokens=(p if name == "by prompt" else i, 1),
                    prompt_length=1,
                    loss_mask=(1,),
                )
                for i, (p, score) in enumerate(scores)
            ]
            pairs = scored_pairs(samples, ours, dict.fromkeys(ours, -1.0))
            released.append(float(decide(pairs, Rule("no_regression")).verdict == "select"))
    return found


def equals(runs: int = 4000) -> Iterator[tuple[str, list[float]]]:
    """What chance releases if no candidate is better than its head."""
    draw = np.random.default_rng(7)
    for name, most in ("a release", ALPHA), ("p at most 0.05", 0.05):
        won = []
        for _ in range(runs):
            p = [sign_flip_test(list(draw.normal(size=12))) for _ in range(10)]
            won.append(float(min(p) <= most))
        yield f"ten candidates, 12 continuous scores, {name}", won
    won = []
    for _ in range(runs):
        ours, heads = (draw.random((2, 6)) < 0.15).astype(float)
        pairs = [TaskResult(task=str(i), candidate=c, head=h) for i, (c, h) in enumerate(zip(ours, heads, strict=True))]  # fmt: skip
        won.append(float(decide(pairs, Rule("no_regression")).verdict == "select"))
    yield "six tasks, a success in seven, no_regression", won


def main() -> None:
    for tasks, steps in STEPS.items():
        for step, start in steps:
            for per in ("comparison", "head", "run"):
                said = run(per, tasks, step, start, 60 if tasks == 12 else 100)
                sys.stdout.write(f"{tasks} tasks, step {step:+g}, error per {per}: {said}\n")
                sys.stdout.flush()
    by_replay = (("replay, " + name, released) for name, released in clusters().items())
    for name, found in (*equals(), *by_replay):
        mean, low, high = mean_interval(found)
        sys.stdout.write(f"equals, {name}: {mean:.1%} [{low:.1%}, {high:.1%}]\n")


if __name__ == "__main__":
    main()
