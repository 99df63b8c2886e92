"""From a full batch to the new release in use, on the embedded stack, with requests that never
stop: the loop by hop, and what requests feel.

    python -m tests.bench.publish [--model tiny|smollm2] [--releases 8] [--swaps 12] [--full 4] [--clients 4]

Three parts. `loop`: clients ask the gateway and report a score on each answer; SAO trains on them,
the evaluator takes every candidate (policy `always`), the publisher puts it to work. `adapter`: the
same clients without reports, so that nothing trains; adapters that are there already are proposed
again and published under new names. `full`: full weights, which pause the node. Every hop is dated
by the event that ends it, as the broker keeps it, and the last one by the first answer that names
the new release. `swap` is from the verdict to that answer; requests that overlap a swap are
compared with those of the same part that overlap none.
"""

import argparse
import asyncio
import itertools
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson

from tests.bench import harness
from tests.bench.harness import Table, tell

NAME = "publish"
WHAT = "time from a full batch to the new release in use, and what requests feel meanwhile"
CONFIG = """
reef:
  recipe: recipes.sao.recipe:SAORecipe
  batch_size: {batch}
  max_staleness: 4
  critic_warmup_steps: 0
  prompt_gradient: false
model: {model}
evaluation: {{policy: always}}
"""
WATCHED = ("samples", "training", "candidates", "evaluations", "releases")


def arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--model", default="tiny", help="tiny, or smollm2 (135M parameters)")
    parser.add_argument("--releases", type=int, default=8, help="releases that are learnt")
    parser.add_argument(
        "--swaps", type=int, default=12, help="releases of adapters that are only published"
    )
    parser.add_argument("--full", type=int, default=4, help="releases of full weights after them")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8, help="rollouts a step")
    parser.add_argument("--tokens", type=int, default=8, help="new tokens a request")
    parser.add_argument(
        "--pause", type=float, default=0.02, help="seconds that a client waits between two requests"
    )


@dataclass
class Seen:
    """What happened, in seconds of one clock."""

    asked: list[tuple[float, float, str]] = field(default_factory=list)
    """(begun, ended, release that answered) of each request."""
    failed: list[str] = field(default_factory=list)
    events: dict[str, tuple[float, dict[str, Any]]] = field(default_factory=dict)
    """(time at the broker, event) by event id."""
    reporting: bool = True


async def client(
    url: str, number: int, seen: Seen, options: argparse.Namespace, ending: asyncio.Event
) -> None:
    """Ask and report until the end."""
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        for turn in itertools.count():
            if ending.is_set():
                return
            body = {
                "model": "reef",
                "max_tokens": options.tokens,
                "messages": [{"role": "user", "content": f"write {number} {turn}"}],
            }
            begun = time.time()
            answer = await http.post("/v1/chat/completions", json=body)
            seen.asked.append((begun, time.time(), answer.headers.get("x-reef-release-id", "")))
            if answer.status_code != 200:
                seen.failed.append(answer.text[:200])
                continue
            if seen.reporting:
                receipt = answer.headers["x-reef-agent-record-id"]
                told = await http.post(
                    "/reef/report", json={"references": [receipt], "score": turn % 2}
                )
                if told.status_code != 202:
                    seen.failed.append(told.text[:200])
            await asyncio.sleep(options.pause)


async def watch(bootstrap: str, seen: Seen) -> None:
    """Keep every event of the loop with its time at the broker, until cancelled."""
    from aiokafka import AIOKafkaConsumer

    from reefcommon import topics

    names = [getattr(topics, name.upper()).name for name in WATCHED]
    async with AIOKafkaConsumer(
        *names, bootstrap_servers=bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        async for record in consumer:
            event = orjson.loads(record.value)
            seen.events.setdefault(event["event_id"], (record.timestamp / 1000, event))


def of(seen: Seen, kind: str) -> list[tuple[float, dict[str, Any]]]:
    """Events of one type, in order."""
    return sorted(
        (found for found in seen.events.values() if found[1]["type"] == kind),
        key=lambda found: found[0],
    )


def loops(seen: Seen) -> list[harness.Row]:
    """Each candidate's way by hop, in milliseconds."""
    rows = []
    steps = {
        event["candidate_id"]: event
        for _, event in of(seen, "step.completed.v1")
        if event.get("candidate_id")
    }
    judged = {
        event["candidate"]["event_id"]: when for when, event in of(seen, "candidate.evaluated.v1")
    }
    proposed = {
        event["event_id"]: (when, event) for when, event in of(seen, "candidate.proposed.v1")
    }
    for published, event in of(seen, "release.published.v1"):
        release = event["release"]
        candidate = release.get("candidate_id")
        served = min(
            (ended for _, ended, name in seen.asked if name == release["release_id"]), default=None
        )
        if candidate not in judged or served is None:
            continue
        told, body = proposed[candidate]
        part = (
            "full"
            if release["kind"] == "checkpoint"
            else "adapter"
            if candidate.startswith("cnd-bench")
            else "loop"
        )
        row = {"part": part, "judged_at": judged[candidate], "served_at": served}
        row |= {
            "evaluate": judged[candidate] - told,
            "publish": published - judged[candidate],
            "first_answer": served - published,
        }
        row |= {"swap": served - judged[candidate]}
        if (step := steps.get(candidate)) is not None:
            complete = max(seen.events[name][0] for name in body["lineage"]["sample_ids"])
            row |= {
                "wait": told - step["duration_s"] - complete,
                "step": step["metrics"]["duration/step_s"],
            }
            row |= {"store": step["metrics"].get("duration/put_s", 0.0), "loop": served - complete}
        rows.append(row)
    return rows


HOPS = ("wait", "step", "store", "evaluate", "publish", "first_answer", "swap", "loop")


def table(seen: Seen, model: str) -> Table:
    """Medians by hop, and latencies inside and outside of swaps."""
    rows = []
    for part in ("loop", "adapter", "full"):
        ways = [row for row in loops(seen) if row["part"] == part]
        if not ways:
            continue
        middle = {
            hop: sorted(row[hop] for row in ways)[len(ways) // 2] * 1000 if hop in ways[0] else 0.0
            for hop in HOPS
        }
        begin, end = ways[0]["judged_at"] - 2.0, ways[-1]["served_at"] + 0.2
        mine = [(b, e) for b, e, _ in seen.asked if b > begin and e < end]
        during = [
            (e - b) * 1000
            for b, e in mine
            if any(b < row["served_at"] and e > row["judged_at"] for row in ways)
        ]
        others = [
            (e - b) * 1000
            for b, e in mine
            if not any(b < row["served_at"] and e > row["judged_at"] for row in ways)
        ]
        figures = {"releases": len(ways), "requests": len(mine), "in_swaps": len(during)}
        figures["failed"] = len(seen.failed)  # in all parts
        p99, before = harness.quantile(during, 0.99), harness.quantile(others, 0.99)
        rows.append(
            {
                "part": part,
                **{f"{hop}_ms": value for hop, value in middle.items()},
                "swap_max_ms": max(r["swap"] for r in ways) * 1000,
            }
            | figures
            | {
                "p50_ms": harness.quantile(others, 0.5),
                "p50_swap_ms": harness.quantile(during, 0.5),
            }
            | {"p99_ms": before, "p99_swap_ms": p99, "p99_ratio": p99 / before}
        )
    notes = [
        "wait: from the last sample of the batch to the job (the verdict on the one before may still be out)",
        *seen.failed[:3],
    ]
    return Table(NAME, f"a batch becomes a release, {model}, medians", rows, notes)


async def published(stack: Any, seen: Seen, part: str, contents: list[str]) -> None:
    """Propose contents that are in the store, one after the other, with requests to compare with
    between them.
    """
    from reefcommon import topics
    from reefcommon.events import CandidateProposed, utc_now
    from reefcommon.settings import SystemSettings
    from reefkit.bus import KafkaPublisher, kafka_broker

    broker = kafka_broker(SystemSettings(kafka_bootstrap=stack.kafka_bootstrap), "bench")
    await broker.start()
    try:
        for number, content in enumerate(contents):
            head = of(seen, "release.published.v1")[-1][1]["release"]["release_id"]
            event = CandidateProposed(
                event_id=f"cnd-bench-{part}-{number}", at=utc_now(), scenario="default", kind=content.partition("-")[0], content_id=content,
                base_release_id=head,
            )  # fmt: skip
            await KafkaPublisher(broker).publish(event, topics.CANDIDATES)
            await until(
                lambda number=number: sum(row["part"] == part for row in loops(seen)) > number, 120
            )
            tell(
                f"{part} {number + 1} of {len(contents)}: swap {loops(seen)[-1]['swap'] * 1000:.0f} ms"
            )
            await asyncio.sleep(1.5)
    finally:
        await broker.stop()


async def full_contents(stack: Any, model_path: Path, count: int, home: Path) -> list[str]:
    """Two sets of full weights in the store, in turns."""
    from reefcommon.artifacts import describe
    from reefkit.artifacts.git import GitArtifactStore

    store, made = GitArtifactStore(stack.state_dir / "artifacts.git"), []
    for number in range(min(count, 2)):
        tree = await asyncio.to_thread(perturbed, model_path, home / f"full-{number}", number)
        manifest = await asyncio.to_thread(describe, tree, "checkpoint")
        made.append(await asyncio.to_thread(store.put, tree, manifest, "default"))
    return [made[number % 2] for number in range(count)]


async def settled(seen: Seen) -> list[str]:
    """Adapters that were published, once no step is under way any more."""
    seen.reporting = False
    count = -1
    while count != len(seen.events):
        count = len(seen.events)
        await asyncio.sleep(4)
    releases = [event["release"] for _, event in of(seen, "release.published.v1")]
    return list(
        dict.fromkeys(release["content_id"] for release in releases if release["kind"] == "lora")
    )


def perturbed(model_path: Path, tree: Path, seed: int) -> Path:
    """All weights of a model, each a little off."""
    import torch
    from safetensors.torch import load_file, save_file

    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for file in sorted(model_path.glob("*.safetensors")):
        weights |= {
            name: w + 1e-3 * torch.randn(w.shape, generator=generator)
            for name, w in load_file(file).items()
        }
    tree.mkdir()
    save_file(weights, tree / "model.safetensors")
    return tree


async def until(condition: Any, within_s: float) -> None:
    """Look twenty times a second."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.05)


async def run(options: argparse.Namespace) -> Table:
    """Start the stack, let it learn, and look."""
    from reefcommon.config import parse
    from reefstack.embedded import Options, embedded_stack
    from reefstack.models import default_cache_dir, prepare

    releases, swaps, full, model = (options.releases, options.swaps, options.full, options.model)
    if options.quick:
        releases, swaps, full, model = 2, 1, 1, "tiny"
    path = prepare(model, default_cache_dir())
    seen, ending = Seen(), asyncio.Event()
    config = parse(CONFIG.format(model=model, batch=options.batch))
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "PYTHONPATH": str(harness.ROOT)}
        async with embedded_stack(
            config, Path(home) / "state", Options(memory_broker=True, default_ports=False, env=env)
        ) as stack:
            watching = asyncio.create_task(watch(stack.kafka_bootstrap, seen))
            clients = [
                asyncio.create_task(client(stack.urls["gateway"], n, seen, options, ending))
                for n in range(options.clients)
            ]
            try:
                for number in range(releases):
                    await until(lambda number=number: len(loops(seen)) > number, 240)
                    tell(
                        f"release {number + 1} of {releases}: swap {loops(seen)[-1]['swap'] * 1000:.0f} ms"
                    )
                adapters = await settled(seen)
                await published(
                    stack, seen, "adapter", [adapters[number % 2] for number in range(swaps)]
                )
                await published(
                    stack, seen, "full", await full_contents(stack, path, full, Path(home))
                )
            finally:
                ending.set()
                await asyncio.gather(*clients, return_exceptions=True)
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
    return table(seen, model)


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
