"""The end of a demonstration: answers, curve, chain, picture, log."""

import json
import os
from pathlib import Path
from statistics import fmean
from typing import Any

import plotext
from rich.console import Console
from rich.table import Table

from reefcli.demo.figures import Figures, Measurement
from reefcli.output import counted, printable
from reefcommon.demonstration import Demonstration, as_messages

_WINDOW = 16
_COLUMNS = ("release", "operation", "figure", "won/lost/tied", "answers")

_HELD_OUT = (
    ", the mean of fresh answers to questions that neither users nor the evaluator\n"
    "ask, with a 95 % interval over questions and answers"
)
_ANEW = "; the second figure was measured after the run, with fresh answers that decided nothing"
_NOT_ANEW = "; the second figure is the last of the run, stopped before it was measured anew"


def draw_terminal(
    points: list[Measurement], shown: Demonstration, *, width: int = 72, height: int = 14
) -> str:
    """The figure over the release chain, as text."""
    plotext.clear_figure()
    # Plain characters: the text goes into logs and pipes, too.
    plotext.theme("clear")
    plotext.plotsize(width, height)
    plotext.title(f"{shown.figure} by release")
    plotext.ylim(0, 1.02 * shown.most)
    plotext.plot([p.sequence for p in points], [p.mean for p in points], marker="braille")
    plotext.xticks([p.sequence for p in points])
    plotext.xlabel("release (its number in the chain)")
    return str(plotext.uncolorize(plotext.build()))


def draw_png(figures: Figures, shown: Demonstration, path: Path) -> Path:
    """The curve with its intervals, and the users' rewards beside it, as a picture."""
    import matplotlib as mpl

    # No display is needed.
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    parts = 1 if shown.seeks else 2
    figure, axes = plt.subplots(1, parts, figsize=(6 * parts, 4.8), squeeze=False)
    left, *rest = axes[0]
    series = [(figures.heldout, "o-", "measured during the run")]
    if figures.final is not None:
        label = f"release {figures.final.sequence}, measured again after the run"
        series.append(([figures.final], "s", label))
    for points, style, label in series:
        times, means = [p.at_s for p in points], [p.mean for p in points]
        bars = [[p.mean - p.low for p in points], [p.high - p.mean for p in points]]
        left.errorbar(times, means, yerr=bars, fmt=style, capsize=3, label=label)
    for p in figures.heldout:
        # Labels at the edge are not clipped.
        place = {"textcoords": "offset points", "xytext": (-5, 7), "annotation_clip": False}
        left.annotate(f"r{p.sequence}", (p.at_s, p.mean), fontsize=8, ha="right", **place)
    left.axhline(shown.goal, linestyle=":", color="grey", label="goal of the lower bound")
    left.set(
        title=f"{shown.figure} by release (95 % interval)",
        xlabel="seconds since the start",
        ylabel=shown.figure,
        # Room for the legend above the curve.
        ylim=(-0.05 * shown.most, 1.35 * shown.most),
        yticks=[shown.most * fifths / 5 for fifths in range(6)],
    )
    left.margins(x=0.08)
    left.legend(loc="upper left", fontsize=8)
    for right in rest:
        judged = range(_WINDOW, len(figures.rewards) + 1)
        right.plot(judged, [fmean(figures.rewards[end - _WINDOW : end]) for end in judged])
        right.set(
            title=f"users' rewards (mean of the last {_WINDOW})",
            xlabel="answers that users have judged",
            ylabel="mean reward",
            ylim=(-0.05, 1.08),
        )
    figure.suptitle(f"{shown.about}\nreward: {shown.signal}", fontsize=10)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def chain_table(figures: Figures) -> Table:
    """Return the release chain, oldest first, with the held-out figure of each release."""
    measured = {point.sequence: point for point in figures.heldout}
    table = Table(title="release chain", show_edge=False)
    for number, name in enumerate(_COLUMNS):
        table.add_column(name, justify="left" if number < 2 else "right", no_wrap=True)
    for event in figures.releases:
        release, evaluation = event.release, event.release.evaluation
        table.add_row(
            release.release_id,
            release.operation,
            str(measured.get(release.sequence, "")),
            f"{evaluation.wins}/{evaluation.losses}/{evaluation.ties}" if evaluation else "",
            str(figures.answered_by.get(release.release_id, 0)),
        )
    return table


def show(console: Console, figures: Figures, shown: Demonstration, summary: dict[str, Any]) -> None:

    def put(text: str = "") -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    put()
    for task in shown.test_tasks[:1]:
        put(f"The question that nobody trained on: {as_messages(task)[-1]['content']}")
    for label, answers in (("before", figures.before), ("after", figures.after)):
        for answer in answers:
            put(f"  {label:<7} {' '.join(printable(answer).split())} …")
    put()
    put(draw_terminal(figures.heldout, shown))
    put()
    console.print(chain_table(figures))
    put(
        f"figure: {shown.figure}{_HELD_OUT if shown.test_tasks else ''}.\n"
        "won/lost/tied: tasks of the verdict against the head, with the evaluator's own answers.\n"
        "answers: how many the release gave to users; none if another release replaced it at once."
    )
    put()
    first, final = figures.heldout[0], figures.final
    last = final or figures.heldout[-1]
    anew = _ANEW if final and shown.test_tasks else "" if final else _NOT_ANEW
    count = summary["releases_of_earlier_runs"]
    earlier = f" ({count} in the chain from earlier runs)" if count else ""
    permuted = summary.get("rewards_permuted")
    subject = "The control arm, with permuted rewards," if permuted else "The demonstration"
    took = f"{summary['elapsed_s']:.0f} s"
    how = f"reached its goal in {took}" if summary["reached"] else f"{_ended(summary)} {took}"
    put(
        f"{subject} {how}{'' if summary['reached'] else _short_of(shown, figures, last)}. "
        f"{shown.figure.capitalize()} {first.counted} -> {last.counted}{anew}. "
        f"Releases: {summary['releases_published']}{earlier}; "
        f"rejected candidates: {summary['candidates_rejected']}; "
        f"requests: {summary['requests']}, failed: {summary['failed_requests']}; "
        f"restarts: {summary['restarts']}."
    )


def _ended(summary: dict[str, Any]) -> str:
    match summary["stopped_by"]:
        case "limit":
            limit = f"{summary['limit_s'] / 60:g} min after its start-up"
            return f"ended at its limit, {limit} (--minutes{busy()}), after"
        case "interrupted":
            return "was interrupted after"
        case _:
            return "ended after"


def _short_of(shown: Demonstration, figures: Figures, last: Measurement) -> str:
    """Return what the goal lacks, in words."""
    lacks = []
    if len(figures.learned) < shown.releases_goal:
        lacks.append(f"{len(figures.learned)} of {counted(shown.releases_goal, 'release')}")
    if last.low < shown.goal:
        lacks.append(f"a lower bound of {last.low:.3f} where the goal is {shown.goal}")
    return f", before its goal: {' and '.join(lacks) or 'not measured anew'}; --continue goes on"


def busy() -> str:
    """Return words on the machine's load if it is above its cores, else none."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return f"; this machine is busy, load {load:.1f} on {cores} cores" if load > cores else ""


def keep(directory: Path, lines: list[str], summary: dict[str, Any]) -> None:
    """Write the run's log and figures: demo.log and demo.json."""
    if directory.is_dir():
        (directory / "demo.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
        text = json.dumps(summary, indent=2) + "\n"
        (directory / "demo.json").write_text(text, encoding="utf-8")
