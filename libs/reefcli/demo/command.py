"""`reef demo`: the whole loop on this machine, with simulated users, shown live.

users --chat--> gateway --> experience --samples--> trainer --candidate--> evaluator
  ^                                                                            |
  '---- the next answer comes from better weights <---- publisher <--verdict---'
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import time_ns
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from reefcli.demo import results
from reefcli.demo.attempt import Attempt, carry_out, next_steps
from reefcli.demo.run import Demo
from reefcli.demo.variant import demonstrations
from reefcli.options import AsJson
from reefcommon.demonstration import Arm, Demonstration, Factories
from reefcommon.statistics import independent_seed

_RECIPE = "The recipe that is shown: a folder of recipes/ with a demo.py, or a package."
_Recipe = Annotated[str, typer.Option(help=_RECIPE)]
_MODEL = "Of sao: smollm2, a real 135M model, about ten minutes; tiny: two minutes."
_Model = Annotated[str | None, typer.Option(help=_MODEL)]
_ARMS = "Variants to run, after each other: names with commas, or all. Default: the method."
_Arms = Annotated[str, typer.Option(help=_ARMS)]
_SEEDS = "Seeds to run each arm with, with commas, in place of --seed."
_Seeds = Annotated[str, typer.Option(help=_SEEDS)]
_STATE = "State of the stack. Default: .reef/demo-MODEL, or .reef/demo-RECIPE-MODEL"
_StateDir = Annotated[Path | None, typer.Option(help=_STATE)]
_FRESH = "Begin anew, or go on with the last run's state."
_Fresh = Annotated[bool, typer.Option("--fresh/--continue", help=_FRESH)]
_SEED = "Of the users' questions and of all answers; --continue draws a new one from it."
_Seed = Annotated[int, typer.Option(help=_SEED)]
_PERMUTED = (
    "The control: each answer gets the reward of another, so that there is nothing to learn. "
    "The same as --arms permuted."
)
_Permuted = Annotated[bool, typer.Option("--permuted", help=_PERMUTED)]

_HARNESS = (
    "Another demonstration: a harness evolves, in an agent (Pi, from npm) and in a plain client's "
    "chats. Its --arms are agent and plain; the model is scripted; a minute and more."
)
_Harness = Annotated[bool, typer.Option("--harness", help=_HARNESS)]
_MINUTES = (
    "Stop each run so many minutes after its start-up, and measure once more. Default: as the "
    "demonstration says."
)
_Minutes = Annotated[float | None, typer.Option(help=_MINUTES, min=0.1)]


def demo(
    recipe: _Recipe = "sao",
    model: _Model = None,
    arms: _Arms = "",
    seeds: _Seeds = "",
    state_dir: _StateDir = None,
    fresh: _Fresh = True,
    seed: _Seed = 0,
    permuted: _Permuted = False,
    minutes: _Minutes = None,
    harness: _Harness = False,
    as_json: AsJson = False,
) -> None:
    """See the whole loop: users ask, their rewards train a LoRA, and winners serve at once.

    Everything runs on this machine; nothing is downloaded. The state directory keeps the run:
    demo.log, demo.json, reward.png. With several arms or seeds each has a directory of its own in
    it, and results.json has a row for each.

    Exit code 0: each run has ended in order, at its goal (`reached` in the JSON), at its limit or
    by Ctrl-C. 1: a run failed, or ended before its first release.

    Examples:

      reef demo

      reef demo --model tiny --json | jq -e .reached

      reef demo --recipe openclaw-rl --arms all --seeds 0,1,2

      reef demo --harness
    """
    if harness:
        _harness(arms, state_dir, fresh=fresh, as_json=as_json)
    factories = demonstrations(recipe)
    model = _named_model(factories, model)
    first = factories[model]()
    chosen = _chosen_arms(first, "permuted" if permuted else arms)
    drawn = _chosen_seeds(seeds) or [seed]
    if not fresh and not first.seeks:
        # the last run's draws are not drawn again
        drawn = [independent_seed(one, time_ns()) for one in drawn]
    several = len(chosen) * len(drawn) > 1
    state_dir = state_dir or _default_state_dir(first, chosen, several=several)
    console = Console(stderr=as_json)
    attempts: list[Attempt] = []
    for arm, one in ((arm, one) for one in drawn for arm in chosen):
        shown = factories[model]()
        shown.minutes = minutes or shown.minutes
        place = state_dir / f"{arm.name}-{one}" if several else state_dir
        attempts.append(carry_out(Demo(shown, place, one, console, arm), fresh=fresh))
        if several or attempts[-1].shown:
            # After each run: an interrupted series keeps its rows.
            results.keep(state_dir, results.summary(attempts))
        if attempts[-1].run.stopped == "interrupted":
            break
    _tell(attempts, console, several=several, as_json=as_json)
    raise typer.Exit(_exit_code(attempts, several=several))


def _harness(arms: str, state_dir: Path | None, *, fresh: bool, as_json: bool) -> NoReturn:
    # Imported here: other demonstrations need none of it.
    from reefcli.demo.harness.run import ACTS, HarnessDemo

    named = [name.strip() for name in arms.split(",") if name.strip() not in ("", "all")]
    if unknown := [name for name in named if name not in ACTS]:
        reason = f"{', '.join(unknown)}: choose of {', '.join(ACTS)}, or all"
        raise typer.BadParameter(reason, param_hint="--arms")
    place = state_dir or Path(".reef") / "demo-harness"
    shown = HarnessDemo(place, Console(stderr=as_json), named or ACTS)
    facts = shown.run(fresh=fresh)
    if as_json:
        sys.stdout.write(json.dumps(facts) + "\n")
    raise typer.Exit(0 if facts["held"] else 1)


def _tell(attempts: Sequence[Attempt], console: Console, *, several: bool, as_json: bool) -> None:
    last = attempts[-1]
    if several:
        console.print(results.table(results.summary(attempts)))
    elif last.shown:
        console.print(next_steps(last), markup=False, highlight=False, soft_wrap=True)
    if as_json and (several or not last.failure):
        told = results.summary(attempts) if several else last.summary
        sys.stdout.write(json.dumps(told) + "\n")


def _exit_code(attempts: Sequence[Attempt], *, several: bool) -> int:
    # A control arm is not meant to make a release.
    method = attempts[0].run.demonstration.arms[0]
    ended = [several or one.shown or one.run.arm != method for one in attempts]
    return int(any(one.failure for one in attempts) or not all(ended))


def _named_model(factories: Factories, model: str | None) -> str:
    if model is None:
        return next(iter(factories))
    if model not in factories:
        raise typer.BadParameter(f"choose of {', '.join(factories)}", param_hint="--model")
    return model


def _chosen_arms(shown: Demonstration, names: str) -> list[Arm]:
    known = {arm.name: arm for arm in shown.arms}
    if names == "all":
        return list(shown.arms)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in known]:
        reason = f"{', '.join(unknown)}: choose of {', '.join(known)}, or all"
        raise typer.BadParameter(reason, param_hint="--arms")
    return [known[name] for name in dict.fromkeys(wanted)] or [shown.arms[0]]


def _chosen_seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise typer.BadParameter("whole numbers with commas", param_hint="--seeds") from None


def _default_state_dir(shown: Demonstration, arms: Sequence[Arm], *, several: bool) -> Path:
    parts = ["demo", *([] if shown.recipe == "sao" else [shown.recipe]), shown.model]
    if not several and arms[0].name != shown.arms[0].name:
        parts.append(arms[0].name)
    return Path(".reef") / "-".join(parts)
