"""python -m tests.chaos --seed 1 --faults 50        kills and outages, nine to one
python -m tests.chaos --scenario broker-away-60       the broker away for 60 s
python -m tests.chaos --scenario store-away-600       the experience service, with its store, away
                                                      for ten minutes (--seconds for another time)

Exit status 0: every invariant held; 1: one is broken, and the command that repeats the run is
printed; 2: the stack gave up.
"""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.chaos import report
from tests.chaos.campaign import Campaign, Settings
from tests.chaos.checker import INVARIANTS, check
from tests.chaos.conduct import no_request_failed
from tests.chaos.facts import Facts
from tests.chaos.plan import Fault, draw
from tests.chaos.stack import SPOOL_DISK_BYTES, StackDied

SCENARIOS = {"broker-away-60": ("tansu", 60.0), "store-away-600": ("experience", 600.0)}


def main() -> int:
    """One run."""
    arguments = _arguments()
    console = Console(stderr=True)
    home = Path(arguments.home or tempfile.mkdtemp(prefix="reef-chaos-")).absolute()
    console.print(f"seed {arguments.seed}; everything lies in {home}", markup=False)
    faults = _faults(arguments)
    began = time.monotonic()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    ) as bar:
        task = bar.add_task("faults", total=len(faults))
        settings = Settings(
            home,
            arguments.seed,
            users=arguments.users,
            pause_s=arguments.pause,
            policy=arguments.policy,
            keys=arguments.keys,
            within_s=arguments.within,
            # a long outage is to be borne: there the disk is large
            spool_bytes=1024**3 if arguments.scenario else SPOOL_DISK_BYTES,
        )
        campaign = Campaign(
            settings,
            lambda words: console.print(
                f"{time.monotonic() - began:6.1f}  {words}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            ),
        )
        try:
            facts = asyncio.run(
                _run(campaign, faults, lambda number: bar.update(task, completed=number))
            )
        except asyncio.CancelledError:
            console.print(f"stopped; everything is kept in {home}", markup=False, soft_wrap=True)
            return 130
        except StackDied as error:
            console.print(
                f"the stack gave up: {error}\nAgain: {_command(arguments)}",
                markup=False,
                soft_wrap=True,
            )
            return 2
    stated = check(facts, (*INVARIANTS, no_request_failed) if arguments.scenario else INVARIANTS)
    found = report.summary(
        facts,
        stated,
        seed=arguments.seed,
        command=_command(arguments),
        started_in_s=campaign.started_in_s,
        took_s=time.monotonic() - began,
    )
    report.write(Path(arguments.json) if arguments.json else home / "report.json", found)
    report.show(Console(), found)
    if found["held"] and not arguments.home:
        shutil.rmtree(home, ignore_errors=True)
    return 0 if found["held"] else 1


async def _run(
    campaign: Campaign, faults: Sequence[Fault], progressed: Callable[[int], None]
) -> Facts:
    """A signal ends the run in order: nothing is left behind."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await campaign.run(faults, progressed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Kills and outages under load on the embedded stack, and what held."
    )
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument(
        "--faults",
        type=int,
        default=20,
        help="kills and outages; pauses and the rest come beside them",
    )
    parser.add_argument("--scenario", choices=sorted(SCENARIOS))
    parser.add_argument("--seconds", type=float, help="how long the scenario's part stays away")
    parser.add_argument(
        "--within",
        type=float,
        default=3600.0,
        help="no further fault after this many seconds under load",
    )
    parser.add_argument("--users", type=int, default=5)
    parser.add_argument(
        "--pause",
        type=float,
        default=Settings.pause_s,
        help="mean seconds between two turns of a user",
    )
    parser.add_argument(
        "--keys",
        type=float,
        default=0.2,
        help="share of the requests that bring a key of their own",
    )
    parser.add_argument(
        "--policy",
        default="always",
        help="how candidates are judged; always: every step becomes a release",
    )
    parser.add_argument(
        "--home",
        help="where everything is kept; default: a temporary directory, removed when all held",
    )
    parser.add_argument("--json", help="where the report goes; default: report.json there")
    return parser.parse_args()


def _faults(arguments: argparse.Namespace) -> Sequence[Fault]:
    if arguments.scenario is None:
        return draw(arguments.seed, arguments.faults)
    part, seconds = SCENARIOS[arguments.scenario]
    return (Fault(1, "outage", (part,), seconds=arguments.seconds or seconds, wait_s=5.0),)


def _command(arguments: argparse.Namespace) -> str:
    what = (
        f"--scenario {arguments.scenario}" if arguments.scenario else f"--faults {arguments.faults}"
    )
    more = f" --seconds {arguments.seconds:g}" if arguments.seconds else ""
    return f"python -m tests.chaos --seed {arguments.seed} {what}{more} --users {arguments.users} --pause {arguments.pause:g} --keys {arguments.keys:g} --policy {arguments.policy}"


if __name__ == "__main__":
    sys.exit(main())
