"""How fast exchanges become rows that can be asked for, and how late they are at a steady rate.

The real service (`python -m services.experience`, on chDB) has the first core for itself; Tansu in
memory, and this driver, share the second.

  backlog   the log is filled first, then the service starts; the clock runs from its first rows to
            its last. `cpu_us` is its CPU time an
            event (all threads), `per_core_s` how many events a second that makes of a whole core
  steady    events come at a rate (`per_s` is the one that was held); `lag` is from an event's
            acknowledgement to its row's being found, for two events a second: too few for a p99

An event is an exchange with token ids and log-probabilities: 200 prompt tokens, 64 sampled ones,
conversations of four turns.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from aiokafka import AIOKafkaProducer

from reefcommon import ids, topics
from reefcommon.events import InferenceRecorded
from reefkit.kafka_topics import ensure_topics
from tests.bench import harness
from tests.bench.harness import Row, Table, apart, cpu_s, free_port, program, tell
from tests.experience.factory import assistant, inference, user

NAME = "ingest"
WHAT = "from topic to queryable row: rate, CPU an event, lag"

PROMPT_TOKENS, SAMPLED_TOKENS, TURNS, INTERLEAVED = 200, 64, 4, 100
Message = tuple[bytes, bytes]


def conversations(count: int) -> list[Message]:
    """(key, value) of conversations of four turns, their turns interleaved with those of others;
    sessions are found by prefix.
    """
    chooser = random.Random(0)
    made: list[Message] = []
    for block in range(0, count, INTERLEAVED * TURNS):
        for turn in range(TURNS):
            for number in range(block // TURNS, block // TURNS + INTERLEAVED):
                said = [{"role": "system", "content": "You are a helpful assistant. " * 4}]
                for earlier in range(turn):
                    said += [
                        user(f"question {number} {earlier} " * 6),
                        assistant(f"answer {number} {earlier} " * 12),
                    ]
                said.append(user(f"question {number} {turn} " * 6))
                made.append(
                    message_of(
                        said,
                        f"answer {number} {turn} " * 12,
                        chooser,
                        scenario="bench",
                        shard=str(number),
                        at=turn,
                    )
                )
    return made[:count]


def tagged(count: int, sessions: int, scenarios: int) -> list[Message]:
    """Exchanges of one size in so many tagged sessions, in turns."""
    chooser = random.Random(0)
    said = [user("question " * 30)]
    return [
        message_of(
            said, "answer " * 40, chooser, scenario=f"bench-{n % sessions % scenarios}", shard=str(n % sessions), at=n // sessions,
            tag=f"s-{n % sessions}",
        )
        for n in range(count)
    ]  # fmt: skip


def message_of(
    said: list[dict[str, str]],
    answer: str,
    chooser: random.Random,
    *,
    scenario: str,
    shard: str,
    at: float,
    tag: str | None = None,
) -> Message:
    """One exchange, as the gateway writes it."""
    event: InferenceRecorded = inference(
        said,
        answer,
        record_id=ids.new_record_id(ids.shard_of(scenario, shard)),
        scenario=scenario,
        at=at,
        prompt=[chooser.randrange(49152) for _ in range(PROMPT_TOKENS)],
        sampled=[chooser.randrange(49152) for _ in range(SAMPLED_TOKENS)],
        logprobs=[-3 * chooser.random() for _ in range(SAMPLED_TOKENS)],
        session_tag=tag,
    )
    return (ids.shard_in(event.event_id) or "").encode(), event.model_dump_json(
        exclude_none=True
    ).encode()


@dataclass(frozen=True)
class Place:
    """A broker, and where a service may keep its state."""

    kafka: str
    state: Path


@contextlib.asynccontextmanager
async def broker() -> AsyncIterator[Place]:
    """Tansu in memory, with all topics, on the cores that are not measured."""
    from reefcommon.config import parse
    from reefstack.embedded import Options, embedded_stack

    config = parse("reef:\n  recipe: recipes.sao.recipe:SAORecipe\nmodel: tiny\n")
    options = Options(
        only=frozenset({"kafka"}), memory_broker=True, default_ports=False, create_topics=False
    )
    apart(rest=True)
    with tempfile.TemporaryDirectory() as folder:
        async with embedded_stack(config, Path(folder) / "stack", options) as stack:
            await ensure_topics(stack.kafka_bootstrap)
            yield Place(stack.kafka_bootstrap, Path(folder) / "state")


@contextlib.asynccontextmanager
async def service(place: Place) -> AsyncIterator[tuple[httpx.AsyncClient, int]]:
    """The service; a client of it, and its pid."""
    port = free_port()
    env = {
        "REEF_KAFKA_BOOTSTRAP": place.kafka,
        "REEF_STATE_DIR": str(place.state),
        "REEF_EXPERIENCE_PORT": str(port),
    }
    with program("-m", "services.experience", port=port, env=env) as pid:
        apart([pid])
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client, pid


async def send(kafka: str, messages: list[Message]) -> None:
    """All of them, as fast as the broker takes them."""
    async with AIOKafkaProducer(
        bootstrap_servers=kafka, acks="all", enable_idempotence=False, linger_ms=5
    ) as producer:
        for start in range(0, len(messages), 1000):
            sent = [
                await producer.send(topics.INFERENCES.name, value, key=key)
                for key, value in messages[start : start + 1000]
            ]
            await asyncio.gather(*sent)


async def rows(client: httpx.AsyncClient, scenarios: list[str]) -> int:
    """Rows that can be found. Asking costs more than it looks: only before and after."""
    counts = 0
    for scenario in scenarios:
        answer = await client.get(f"/scenarios/{scenario}/summary")
        counts += (
            int(answer.json().get("records", {}).get("ok", 0)) if answer.status_code == 200 else 0
        )
    return counts


async def handled(client: httpx.AsyncClient) -> int:
    """Events whose rows are durable, as the service counts them."""
    text = (await client.get("/metrics")).text
    lines = [
        line
        for line in text.splitlines()
        if line.startswith("reef_events_total{") and 'outcome="done"' in line
    ]
    return int(
        sum(float(line.rsplit(" ", 1)[1]) for line in lines if topics.INFERENCES.name in line)
    )


async def backlog(messages: list[Message], scenarios: list[str]) -> Row:
    """Let the service catch up with a log that was filled before."""
    async with broker() as place:
        await send(place.kafka, messages)
        async with service(place) as (client, pid):
            started = (0, time.perf_counter(), cpu_s(pid))
            async with asyncio.timeout(170):
                while (first := await handled(client)) == 0:
                    await asyncio.sleep(0.05)
                begin, used = time.perf_counter(), cpu_s(pid)
                if first == len(
                    messages
                ):  # so few that one batch held them all: then the start counts too
                    first, begin, used = started
                while (last := await handled(client)) < len(messages):
                    await asyncio.sleep(0.1)
            wall, used = time.perf_counter() - begin, cpu_s(pid) - used
            if (found := await rows(client, scenarios)) != len(messages):
                raise SystemExit(f"{found} rows of {len(messages)} events can be found")
    taken = last - first
    return {
        "events": taken,
        "per_s": taken / wall,
        "cpu_us": used / taken * 1e6,
        "per_core_s": taken / used,
    }


async def steady(rate: int, seconds: float) -> Row:
    """Events at a rate; how long until each probe's row is there."""
    warm, messages = conversations(rate), conversations(int(rate * seconds) + rate)[rate:]
    lags: list[float] = []
    async with broker() as place, service(place) as (client, pid):
        await send(place.kafka, warm)
        async with asyncio.timeout(60):
            while await rows(client, ["bench"]) < len(warm):
                await asyncio.sleep(0.1)
        probes: set[asyncio.Task[None]] = set()
        used, begin = cpu_s(pid), time.perf_counter()
        async with AIOKafkaProducer(
            bootstrap_servers=place.kafka, acks="all", enable_idempotence=False, linger_ms=5
        ) as producer:
            for start in range(0, len(messages), max(rate // 20, 1)):
                sent = [
                    await producer.send(topics.INFERENCES.name, v, key=k)
                    for k, v in messages[start : start + max(rate // 20, 1)]
                ]
                await asyncio.gather(*sent)
                if start % max(rate // 2, 1) < max(
                    rate // 20, 1
                ):  # more would be a load of their own
                    record_id = InferenceRecorded.model_validate_json(messages[start][1]).event_id
                    probes.add(asyncio.create_task(_lag(client, record_id, lags)))
                await asyncio.sleep(
                    max(0.0, begin + (start + rate / 20) / rate - time.perf_counter())
                )
            sent_s = time.perf_counter() - begin
            async with asyncio.timeout(60):
                await asyncio.gather(*probes)
        used = cpu_s(pid) - used
    quantiles = {
        name: harness.quantile(lags, share)
        for name, share in (("lag_p50_s", 0.5), ("lag_max_s", 1.0))
    }
    return {
        "events": len(messages),
        "per_s": len(messages) / sent_s,
        "cpu_us": used / len(messages) * 1e6,
        **quantiles,
    }


async def _lag(client: httpx.AsyncClient, record_id: str, lags: list[float]) -> None:
    begin = time.perf_counter()
    while (await client.get(f"/records/{record_id}")).status_code != 200:
        await asyncio.sleep(0.1)
    lags.append(time.perf_counter() - begin)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--events", type=int, default=20_000, help="events of the backlog")
    parser.add_argument("--rate", type=int, default=500, help="events a second of the steady run")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the steady run")


async def run(options: argparse.Namespace) -> Table:
    """Both."""
    if options.quick:
        options.events, options.rate, options.seconds = 800, 100, 1.0
    empty = {"lag_p50_s": "", "lag_max_s": ""}
    messages = conversations(options.events)
    size = sum(len(value) for _, value in messages) / len(messages)
    caught = await backlog(messages, ["bench"])
    tell(f"backlog: {caught['per_s']:.0f} events/s, {caught['cpu_us']:.0f} us CPU an event")
    held = await steady(options.rate, options.seconds)
    tell(f"steady: lag p50 {held['lag_p50_s']:.2f} s, at most {held['lag_max_s']:.2f} s")
    table = [{"run": "backlog", **caught, **empty}, {"run": "steady", **held, "per_core_s": ""}]
    return Table(
        NAME,
        "exchanges from topic to row",
        [{name: row[name] for name in table[0]} for row in table],
        [f"{size:.0f} bytes an event"],
    )


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
