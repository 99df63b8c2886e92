"""What recording costs: CPU time of the gateway per exchange, beside a bare aiohttp pass-through in the same run, and the time it adds.

Four kinds of processes: a serving node that answers at once with canned bytes (token ids and log-probabilities included), the real gateway
(`python -m services.gateway`) on Tansu and Valkey, a pass-through of 30 lines that records nothing, and this driver. The server under test
has the first core for itself, everything else shares the second. Rounds of both servers take turns; the medians are shown.

  cpu_ms  user and system time of the gateway an exchange      bare_ms  the same of the pass-through, in the same minute
  ratio   of the two, the median over the rounds               added_ms median latency less that of the pass-through
  p50_ms, p99_ms  latency as the client sees it

Every client asks in sessions of its own, in turns (`--sessions`), so that events go to all partitions. On S3 the broker (Tansu) writes each
batch to SeaweedFS before it acknowledges.

`--beside PATH` lets the gateway of another checkout take turns too, on the same broker: beside_ms is its CPU an exchange, of_beside ours in
units of it. Other work on the machine disturbs the lowest quartile of the rounds least (`--quartile`).
"""

import argparse
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench import harness
from tests.bench.harness import Row, Table, apart, free_port, program, tell
from tests.bench.traffic import Traffic, ask, measure, scenario_name

NAME = "gateway"
WHAT = "CPU per recorded exchange beside a bare pass-through; added latency"


@dataclass(frozen=True)
class Servers:
    """Ports and pids of what is measured."""

    bare: tuple[int, int]
    gateway: tuple[int, int]
    beside: tuple[int, int] | None = None


@contextlib.asynccontextmanager
async def servers(
    *,
    broker: str,
    idempotence: bool = False,
    scenarios: int = 1,
    serve: str = "",
    before: Callable[[str, Path], Awaitable[None]] | None = None,
    beside: Path | None = None,
) -> AsyncIterator[Servers]:
    """The pass-through and the gateway, before the same serving node; `broker` is `memory` or `s3`.

    idempotence: as in production. Tansu has none, so a door before it acknowledges the events.
    serve: the gateway's serve.yaml; `before` gets Redis and the state directory before it starts.
    beside: another checkout, whose gateway is started too.
    """
    from reefcommon.config import parse
    from reefstack.embedded import Options, embedded_stack

    config = parse("reef:\n  recipe: recipes.sao.recipe:SAORecipe\nmodel: tiny\n")
    roles = Options(
        only=frozenset({"kafka", "redis"}),
        memory_broker=broker == "memory",
        default_ports=False,
        create_topics=False,
    )
    apart(rest=True)
    with tempfile.TemporaryDirectory() as state:
        async with embedded_stack(config, Path(state), roles) as stack:
            await prepared(stack.kafka_bootstrap, stack.redis_url, scenarios)
            node, bare, gateway, door = free_port(), free_port(), free_port(), free_port()
            env = {
                "REEF_KAFKA_BOOTSTRAP": f"127.0.0.1:{door}"
                if idempotence
                else stack.kafka_bootstrap,
                "REEF_KAFKA_IDEMPOTENCE": str(idempotence).lower(),
                "REEF_REDIS_URL": stack.redis_url,
                "REEF_ENGINE_URLS": f"http://127.0.0.1:{node}",
                "REEF_STATE_DIR": state,
                "REEF_GATEWAY_PORT": str(gateway),
            }
            if serve:
                env["REEF_CONFIG"] = str(Path(state) / "serve.yaml")
                Path(env["REEF_CONFIG"]).write_text(serve)
            if before is not None:
                await before(stack.redis_url, Path(state))
            arguments = ["-m", "tests.bench.peers", "door", str(door), stack.kafka_bootstrap]
            with (
                program(*arguments, port=door),
                program("-m", "tests.bench.peers", "canned", str(node), port=node),
                program(
                    "-m",
                    "tests.bench.peers",
                    "bare",
                    str(bare),
                    f"http://127.0.0.1:{node}",
                    port=bare,
                ) as bare_pid,
                program("-m", "services.gateway", port=gateway, env=env) as gateway_pid,
            ):
                apart([bare_pid, gateway_pid])
                found = Servers((bare, bare_pid), (gateway, gateway_pid))
                if beside is None:
                    yield found
                    return
                port = free_port()
                env["REEF_GATEWAY_PORT"] = str(port)
                with program("-m", "services.gateway", port=port, env=env, root=beside) as pid:
                    apart([pid])
                    yield replace(found, beside=(port, pid))


async def prepared(kafka: str, redis_url: str, scenarios: int) -> None:
    """Topics, and a head for each scenario, as the publisher would make them."""
    from reefcommon.events import Release, utc_now
    from reefkit.kafka_topics import ensure_topics
    from reefkit.redis_heads import RedisReleaseHeads, connect

    await ensure_topics(kafka)
    redis = connect(redis_url)
    for name in map(scenario_name, range(scenarios)):
        head = Release(
            release_id=f"rel-{name}", scenario=name, sequence=0, parent_id=None, kind="base", content_id="base", operation="creation",
            load_id="bench:0", created_at=utc_now(),
        )  # fmt: skip
        await RedisReleaseHeads(redis).advance(head)
    await redis.aclose()


async def compare(
    found: Servers,
    traffic: Traffic,
    clients: int,
    count: int,
    rounds: int,
    *,
    quartile: bool = False,
) -> Row:
    """Rounds of all servers in turns, as one row of medians or lower quartiles."""
    for server in (found.bare, found.gateway, found.beside):
        if server is not None:  # warm: code paths, connections, partitions
            await ask(server[0], traffic.requests(max(count // 4, clients)), clients)
    rows = []
    for _ in range(rounds):
        bare = await measure(*found.bare, traffic, clients, count)
        ours = await measure(*found.gateway, traffic, clients, count)
        row = {
            "cpu_ms": ours["cpu_ms"],
            "bare_ms": bare["cpu_ms"],
            "ratio": ours["cpu_ms"] / bare["cpu_ms"],
            "p50_ms": ours["p50_ms"],
            "added_ms": ours["p50_ms"] - bare["p50_ms"],
            "p99_ms": ours["p99_ms"],
            "per_s": ours["per_s"],
        }
        if found.beside is not None:
            row["beside_ms"] = (await measure(*found.beside, traffic, clients, count))["cpu_ms"]
        rows.append(row)
    if not quartile:
        row = harness.middle(rows)
    else:
        row = {name: harness.quantile([row[name] for row in rows], 0.25) for name in rows[0]}
        row["ratio"] = row["cpu_ms"] / row["bare_ms"]
    if found.beside is not None:
        row["of_beside"] = row["cpu_ms"] / row["beside_ms"]
    return row


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--brokers", nargs="+", choices=["memory", "s3"], default=["memory", "s3"])
    parser.add_argument(
        "--kinds", nargs="+", choices=["unary", "stream"], default=["unary", "stream"]
    )
    parser.add_argument(
        "--idempotence",
        nargs="+",
        choices=["off", "on"],
        default=["on", "off"],
        help="the producer's setting; `on` is that of production, with `--brokers memory` alone",
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument(
        "--requests", type=int, default=450, help="unary exchanges a round; a third as many streams"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--beside", type=Path, help="another checkout of this repository")
    parser.add_argument(
        "--quartile", action="store_true", help="show lower quartiles in place of medians"
    )


async def run(options: argparse.Namespace) -> Table:
    """Measure both servers at each number of clients."""
    if options.quick:
        options.brokers, options.clients, options.requests, options.rounds = ["memory"], [2], 30, 1
    beside = options.beside and options.beside.resolve()
    rows = []
    for broker, idempotence in _settings(options):
        on = idempotence == "on"
        async with servers(broker=broker, idempotence=on, beside=beside) as found:
            for kind in options.kinds:
                for clients in options.clients:
                    count = (
                        options.requests
                        // (3 if kind == "stream" else 1)
                        // (2 if clients == 1 else 1)
                    )
                    row = await compare(
                        found,
                        Traffic(kind, options.sessions),
                        clients,
                        count,
                        options.rounds,
                        quartile=options.quartile,
                    )
                    rows.append(
                        {
                            "broker": broker,
                            "idempotence": idempotence,
                            "kind": kind,
                            "clients": clients,
                            **row,
                        }
                    )
                    tell(
                        f"{broker}, idempotence {idempotence}, {kind} x{clients}: {row['cpu_ms']:.3f} ms, {row['ratio']:.2f} of bare, p50 {row['p50_ms']:.2f} ms"
                    )
    return Table(NAME, "an exchange through the gateway (a stream has 51 events)", rows)


def _settings(options: argparse.Namespace) -> list[tuple[str, str]]:
    pairs = [(broker, setting) for broker in options.brokers for setting in options.idempotence]
    return [(broker, setting) for broker, setting in pairs if (broker, setting) != ("s3", "on")]


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
