"""Does an event cost more when there are more sessions and scenarios? CPU time an event at 1x, 10x and 100x of both.

  gateway  unary exchanges of 8 clients, over 100 sessions in 1 scenario; then ten and a hundred times as many of each. All gateways that are
           compared run before the same broker and know all scenarios; rounds of the three take turns
  ingest   a backlog of exchanges in 50 tagged sessions of 1 scenario; then ten and a hundred times as many of each. Each backlog has a
           broker and a store of its own; rounds of the three take turns

`ratio` is to 1x of the same part: the median of the rounds' ratios, so that a machine that is slow for a while is slow for all of a
round. `lowest` and `highest` are those of a single round.
"""

import argparse
import statistics
import sys

from tests.bench import gateway, harness, ingest, traffic
from tests.bench.harness import Row, Table, tell

NAME = "scale"
WHAT = "CPU an event at 1x, 10x and 100x sessions and scenarios"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--factors", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument(
        "--parts", nargs="+", choices=["gateway", "ingest"], default=["gateway", "ingest"]
    )
    parser.add_argument(
        "--requests", type=int, default=1000, help="exchanges a round of the gateway"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--events", type=int, default=12_000, help="events of a backlog")


async def of_gateway(factors: list[int], requests: int, rounds: int) -> list[Row]:
    """CPU us an exchange."""
    found: dict[int, list[float]] = {factor: [] for factor in factors}
    async with gateway.servers(broker="memory", scenarios=max(factors)) as servers:
        for _ in range(rounds + 1):  # the first one is warm-up
            for factor in factors:
                asked = traffic.Traffic("unary", sessions=100 * factor, scenarios=factor)
                row = await traffic.measure(
                    *servers.gateway, asked, 8, requests, skip=len(found[factor]) * requests
                )
                found[factor].append(row["cpu_ms"] * 1000)
    return rows_of("gateway", {factor: taken[1:] or taken for factor, taken in found.items()}, 100)


async def of_ingest(factors: list[int], events: int, rounds: int) -> list[Row]:
    """CPU us an event."""
    found: dict[int, list[float]] = {factor: [] for factor in factors}
    for number in range(rounds):
        for factor in factors if number % 2 == 0 else reversed(factors):  # none is always the first
            row = await ingest.backlog(
                ingest.tagged(events, 50 * factor, factor), [f"bench-{n}" for n in range(factor)]
            )
            found[factor].append(row["cpu_us"])
            tell(f"ingest {factor}x, round {number + 1}: {row['cpu_us']:.0f} us an event")
    return rows_of("ingest", found, 50)


def rows_of(part: str, found: dict[int, list[float]], sessions: int) -> list[Row]:
    """One row a factor. `found`: us of each round."""
    first = found[min(found)]
    rows = []
    for factor, taken in found.items():
        ratios = [cpu_us / base for cpu_us, base in zip(taken, first, strict=True)]
        rows.append({
            "part": part, "sessions": sessions * factor, "scenarios": factor, "cpu_us": statistics.median(taken),
            "ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios),
        })  # fmt: skip
    return rows


async def run(options: argparse.Namespace) -> Table:
    """Both parts."""
    if options.quick:
        options.factors, options.requests, options.rounds, options.events = [1, 2], 40, 1, 600
    rows = []
    if "gateway" in options.parts:
        rows += await of_gateway(options.factors, options.requests, options.rounds)
        tell(", ".join(f"gateway {row['scenarios']}x: {row['cpu_us']:.0f} us" for row in rows))
    if "ingest" in options.parts:
        rows += await of_ingest(
            options.factors[:1] if options.quick else options.factors,
            options.events,
            options.rounds,
        )
    return Table(NAME, "CPU an event as sessions and scenarios grow", rows)


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
