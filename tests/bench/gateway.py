"""What recording costs: CPU time of the gateway per exchange, beside a bare aiohttp pass-through in the same run, and the time it adds.

Four kinds of processes: a serving node that answers at once with canned bytes (token ids and log-probabilities included), the real gateway
(`python -m services.gateway`) on Tansu and Valkey, a pass-through of 30 lines that records nothing, and this driver. The server under test
has the first core for itself, everything else shares the second. Rounds of both servers take turns; the medians are shown.

  cpu_ms  user and system time of the gateway an exchange      bare_ms  the same of the pass-through, in the same minute
  ratio   of the two, the median over the rounds               added_ms median latency less that of the pass-through
  p50_ms, p99_ms  latency as the client sees it

Every client asks in sessions of its own, in turns (`--sessions`), so that events go to all partitions. On S3 the broker (Tansu) writes each
batch to SeaweedFS before it acknowledges.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import orjson

from tests.bench import harness
from tests.bench.harness import Row, Table, apart, cpu_s, free_port, program, tell

NAME = "gateway"
WHAT = "CPU per recorded exchange beside a bare pass-through; added latency"

BODY = {
    "model": "reef",
    "messages": [
        {"role": "system", "content": "You are a careful assistant. " * 8},
        {"role": "user", "content": "What is the capital of France? " * 4},
    ],
    "temperature": 0.7,
    "max_tokens": 64,
}
BODIES = {"unary": orjson.dumps(BODY), "stream": orjson.dumps({**BODY, "stream": True})}
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\nx-reef-scenario: %b\r\n"
    b"x-reef-tag-session: %b\r\nx-reef-tag-task: bench\r\ncontent-length: %d\r\n\r\n%b"
)


@dataclass(frozen=True)
class Traffic:
    """What the clients ask: exchanges of `kind` in `sessions` sessions, which lie in `scenarios` scenarios."""

    kind: str
    sessions: int = 100
    scenarios: int = 1

    def requests(self, count: int, skip: int = 0) -> list[bytes]:
        """`count` requests after the first `skip`, whole; the sessions take turns."""
        body = BODIES[self.kind]
        turns = [n % self.sessions for n in range(skip, skip + count)]
        whole = {
            n: REQUEST % (scenario_name(n % self.scenarios).encode(), b"s-%d" % n, len(body), body)
            for n in set(turns)
        }
        return [whole[n] for n in turns]


def scenario_name(number: int) -> str:
    """The names of the scenarios."""
    return "default" if number == 0 else f"bench-{number}"


# ------------------------------------------------------------------ the driver


async def client(port: int, requests: list[bytes], latencies: list[float]) -> None:
    """One kept-alive connection that asks one request after another."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    try:
        for request in requests:
            started = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"not answered: {head[:200]!r} {await reader.read(300)!r}")
            if b"chunked" in head:
                await reader.readuntil(b"\r\n0\r\n\r\n")
            else:
                await reader.readexactly(
                    next(
                        int(line[15:])
                        for line in head.split(b"\r\n")
                        if line.startswith(b"content-length:")
                    )
                )
            latencies.append(time.perf_counter() - started)
    finally:
        writer.close()


async def ask(port: int, requests: list[bytes], clients: int) -> list[float]:
    """All requests by so many clients at once; latencies in seconds."""
    latencies: list[float] = []
    await asyncio.gather(*(client(port, requests[n::clients], latencies) for n in range(clients)))
    return latencies


async def measure(
    port: int, pid: int, traffic: Traffic, clients: int, count: int, *, skip: int = 0
) -> Row:
    """CPU ms and latency ms per exchange."""
    return await timed(port, pid, traffic.requests(max(count, clients), skip), clients)


async def timed(port: int, pid: int, requests: list[bytes], clients: int) -> Row:
    """CPU ms and latency ms of one of these requests."""
    used, started = cpu_s(pid), time.perf_counter()
    latencies = await ask(port, requests, clients)
    wall, used = time.perf_counter() - started, cpu_s(pid) - used
    return {
        "cpu_ms": used / len(latencies) * 1000,
        "p50_ms": harness.quantile(latencies, 0.5) * 1000,
        "p99_ms": harness.quantile(latencies, 0.99) * 1000,
        "per_s": len(latencies) / wall,
    }


# ------------------------------------------------------------------ the servers


@dataclass(frozen=True)
class Servers:
    """Ports and pids of what is measured."""

    bare: tuple[int, int]
    gateway: tuple[int, int]


@contextlib.asynccontextmanager
async def servers(
    *,
    broker: str,
    idempotence: bool = False,
    scenarios: int = 1,
    serve: str = "",
    before: Callable[[str, Path], Awaitable[None]] | None = None,
) -> AsyncIterator[Servers]:
    """The pass-through and the gateway, before the same serving node; `broker` is `memory` or `s3`.

    idempotence: as in production. Tansu has none, so a door before it acknowledges the events.
    serve: the gateway's serve.yaml; `before` gets Redis and the state directory before it starts.
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
                yield Servers((bare, bare_pid), (gateway, gateway_pid))


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


async def compare(found: Servers, traffic: Traffic, clients: int, count: int, rounds: int) -> Row:
    """Rounds of both servers in turns, as one row."""
    for port, _ in (found.bare, found.gateway):  # warm: code paths, connections, partitions
        await ask(port, traffic.requests(max(count // 4, clients)), clients)
    rows = []
    for _ in range(rounds):
        bare = await measure(*found.bare, traffic, clients, count)
        ours = await measure(*found.gateway, traffic, clients, count)
        rows.append(
            {
                "cpu_ms": ours["cpu_ms"],
                "bare_ms": bare["cpu_ms"],
                "ratio": ours["cpu_ms"] / bare["cpu_ms"],
                "p50_ms": ours["p50_ms"],
                "added_ms": ours["p50_ms"] - bare["p50_ms"],
                "p99_ms": ours["p99_ms"],
                "per_s": ours["per_s"],
            }
        )
    return harness.middle(rows)


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


async def run(options: argparse.Namespace) -> Table:
    """Measure both servers at each number of clients."""
    if options.quick:
        options.brokers, options.clients, options.requests, options.rounds = ["memory"], [2], 30, 1
    rows = []
    for broker, idempotence in _settings(options):
        async with servers(broker=broker, idempotence=idempotence == "on") as found:
            for kind in options.kinds:
                for clients in options.clients:
                    count = (
                        options.requests
                        // (3 if kind == "stream" else 1)
                        // (2 if clients == 1 else 1)
                    )
                    row = await compare(
                        found, Traffic(kind, options.sessions), clients, count, options.rounds
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
