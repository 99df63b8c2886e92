"""How fast exchanges go from the topic to rows that can be asked for: `taskset -c 0 python -m tests.experience.bench_ingest [events]`.

The log is filled first. Then the service reads it; the clock runs from its first committed batch to the last row. The broker runs beside
it, so give it another core. Prints one line of JSON; `cpu_us` is this process's CPU time an event, all threads together.
"""

import asyncio
import contextlib
import gc
import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

import httpx
import structlog
from aiokafka import AIOKafkaProducer

from reefcli.stack.embedded import Options, embedded_stack
from reefcommon import ids, topics
from reefcommon.bus import ensure_topics
from reefcommon.config import parse
from tests.experience.factory import assistant, inference, user
from tests.experience.test_broker import running

PROMPT_TOKENS, SAMPLED_TOKENS, TURNS = 200, 64, 4


def exchanges(count: int) -> list[tuple[bytes, bytes]]:
    """(key, value) of conversations of four turns, their turns interleaved with those of others."""
    chooser = random.Random(0)
    made = []
    for block in range(0, count, 400):
        for turn in range(TURNS):
            for conversation in range(block // TURNS, (block + 400) // TURNS):
                said = [{"role": "system", "content": "You are a helpful assistant. " * 4}]
                for earlier in range(turn):
                    said += [user(f"question {conversation} {earlier} " * 6), assistant(f"answer {conversation} {earlier} " * 12)]
                said.append(user(f"question {conversation} {turn} " * 6))
                event = inference(
                    said,
                    f"answer {conversation} {turn} " * 12,
                    record_id=ids.new_record_id(ids.shard_of("bench", str(conversation))),
                    scenario="bench",
                    at=turn,
                    prompt=[chooser.randrange(49152) for _ in range(PROMPT_TOKENS)],
                    sampled=[chooser.randrange(49152) for _ in range(SAMPLED_TOKENS)],
                    logprobs=[-3 * chooser.random() for _ in range(SAMPLED_TOKENS)],
                )
                made.append(((ids.shard_in(event.event_id) or "").encode(), event.model_dump_json(exclude_none=True).encode()))
    return made[:count]


async def fill(bootstrap: str, events: list[tuple[bytes, bytes]]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=False, linger_ms=5) as producer:
        for start in range(0, len(events), 1000):
            sent = [await producer.send(topics.INFERENCES.name, value, key=key) for key, value in events[start : start + 1000]]
            await asyncio.gather(*sent)


async def rows(client: httpx.AsyncClient) -> int:
    return int((await client.get("/scenarios/bench/summary")).json().get("records", {}).get("ok", 0))


async def measure(count: int, batch: int) -> dict[str, float]:
    events = exchanges(count)
    size = round(sum(len(value) for _, value in events) / count)
    config = parse("reef:\n  recipe: recipes.sao.recipe:SAORecipe\nmodel: tiny\n")
    options = Options(only=frozenset({"kafka"}), memory_broker=True, default_ports=False, create_topics=False)
    with tempfile.TemporaryDirectory() as folder:
        async with contextlib.AsyncExitStack() as stack:
            broker = await stack.enter_async_context(embedded_stack(config, Path(folder) / "stack", options))
            await ensure_topics(broker.kafka_bootstrap)
            await fill(broker.kafka_bootstrap, events)
            del events
            client = await stack.enter_async_context(running(broker.kafka_bootstrap, Path(folder) / "state", batch_records=batch))
            while (first := await rows(client)) == 0:
                await asyncio.sleep(0.01)
            begin, cpu = time.perf_counter(), cpu_s()
            while (last := await rows(client)) < count:
                await asyncio.sleep(0.5)  # a count of everything costs more than it looks
            wall, used = time.perf_counter() - begin, cpu_s() - cpu
    taken = last - first
    return {
        "events": taken,
        "batch": batch,
        "events_per_s": round(taken / wall),
        "cpu_us": round(used / taken * 1e6),
        "bytes_per_event": size,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)  # as the service sets it
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 500
    sys.stdout.write(json.dumps(asyncio.run(measure(wanted, size))) + "\n")
