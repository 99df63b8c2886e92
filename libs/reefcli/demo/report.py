"""The end of a demonstration: the reward curve on the terminal and as PNG, the release chain, and what to try next."""

from pathlib import Path
from typing import Any

import plotext
from rich.console import Console
from rich.table import Table

from reefcli.demo.progress import Progress


def draw_terminal(progress: Progress, *, width: int = 72, height: int = 14) -> str:
    """The held-out reward over the release chain, and the users' own rewards, as text."""
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(width, height)
    plotext.title("held-out reward of the served model, by release")
    plotext.ylim(0, 1.02)
    plotext.plot(
        [point[1] for point in progress.heldout],
        [point[2] for point in progress.heldout],
        marker="braille",
    )
    plotext.xlabel("release (sequence in the chain)")
    return str(plotext.uncolorize(plotext.build()))


def draw_png(progress: Progress, path: Path, *, title: str) -> Path:
    """The same with the users' rewards beside it, as a picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    left.step(
        [p[0] for p in progress.heldout], [p[2] for p in progress.heldout], where="post", marker="o"
    )
    left.set(
        title="held-out reward of the served model",
        xlabel="seconds",
        ylabel="reward",
        ylim=(0, 1.03),
    )
    for at, sequence, value in {point[1]: point for point in progress.heldout}.values():
        left.annotate(
            f"r{sequence}", (at, value), textcoords="offset points", xytext=(4, -12), fontsize=8
        )
    window = 16
    smooth = [
        sum(progress.rewards[max(0, i - window + 1) : i + 1]) / min(window, i + 1)
        for i in range(len(progress.rewards))
    ]
    right.plot(smooth)
    right.set(title=f"users' rewards (mean of {window})", xlabel="answered request", ylim=(0, 1.03))
    figure.suptitle(title)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def chain_table(progress: Progress) -> Table:
    """The release chain, oldest first, with the evaluation that let each release in."""
    table = Table(title="release chain", show_edge=False)
    for name in (
        "#",
        "release",
        "operation",
        "held-out: candidate",
        "head",
        "wins/losses",
        "served answers",
    ):
        table.add_column(name, justify="left" if name in {"release", "operation"} else "right")
    for event in progress.releases:
        release, evaluation = event.release, event.release.evaluation
        scores = (
            (_number(evaluation.candidate_score), _number(evaluation.head_score))
            if evaluation
            else ("", "")
        )
        margin = f"{evaluation.wins}/{evaluation.losses}" if evaluation else ""
        served = str(progress.served_by.get(release.release_id, 0))
        table.add_row(
            str(release.sequence), release.release_id, release.operation, *scores, margin, served
        )
    return table


def show(
    console: Console, progress: Progress, summary: dict[str, Any], *, png: Path, next_steps: str
) -> None:
    """Print the end."""
    console.print()
    console.print(draw_terminal(progress), markup=False, highlight=False)
    console.print()
    console.print(chain_table(progress))
    console.print()
    verdict = "reached its goal" if summary["reached"] else "did NOT reach its goal"
    console.print(
        f"The demonstration {verdict} in {summary['elapsed_s']:.0f} s: held-out reward {summary['heldout_first']} -> "
        f"{summary['heldout_last']}; releases: {summary['releases_published']}; rejected candidates: {summary['candidates_rejected']}; "
        f"requests: {summary['requests']}, failed: {summary['failed_requests']}; restarts: {summary['restarts']}."
    )
    console.print(f"Picture: {png}", soft_wrap=True)
    console.print()
    console.print(next_steps, markup=False, highlight=False, soft_wrap=True)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
