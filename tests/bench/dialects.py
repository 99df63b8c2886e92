"""What the formats beside chat cost, and a harness that is put into chats: CPU time of the gateway per exchange, in turns with plain chats.

The processes are those of the gateway bench, with the producer's setting of production. All kinds ask for the same: the same system text,
user text and limit, 50 tokens of answer. The driver's rounds go chat, messages, responses, applied, chat, …

  cpu_ms   user and system time of the gateway an exchange
  of_chat  the same beside the chat of its round, the median over the rounds, with the lowest and the highest
  more_ms  cpu_ms less that of the chat of its round, the median
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import orjson

from tests.bench import gateway, harness, traffic
from tests.bench.harness import Row, Table, tell

NAME = "dialects"
WHAT = "CPU of an exchange in the formats beside chat, and with a harness put into it"

RULED = "ruled"
SERVE = f"reef: {{recipe: 'recipes.sao.recipe:SAORecipe'}}\nmodel: tiny\nharness: {{apply: {{{RULED}: system_prompt}}}}\n"
SYSTEM, USER = (message["content"] for message in traffic.BODY["messages"])  # type: ignore[index, attr-defined]
COMMON = {"model": "reef", "temperature": 0.7}
KINDS: dict[str, tuple[str, str, dict[str, object]]] = {
    "chat": ("/v1/chat/completions", "default", traffic.BODY),
    "messages": (
        "/v1/messages",
        "default",
        {
            **COMMON,
            "max_tokens": 64,
            "system": SYSTEM,
            "messages": [{"role": "user", "content": USER}],
        },
    ),
    "responses": (
        "/v1/responses",
        "default",
        {**COMMON, "max_output_tokens": 64, "instructions": SYSTEM, "input": USER},
    ),
    "harness applied": ("/v1/chat/completions", RULED, traffic.BODY),
}
HEAD = (
    b"POST %b HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\nx-reef-scenario: %b\r\n"
    b"x-reef-tag-session: %b\r\nx-reef-tag-task: bench\r\ncontent-length: %d\r\n\r\n%b"
)


def requests(kind: str, stream: bool, count: int) -> list[bytes]:
    """Requests of a kind, of 100 sessions in turns."""
    path, scenario, fields = KINDS[kind]
    body = orjson.dumps({**fields, "stream": True} if stream else fields)
    head = (path.encode(), scenario.encode())
    return [HEAD % (*head, b"s-%d" % (n % 100), len(body), body) for n in range(count)]


async def with_harness(redis_url: str, state: Path) -> None:
    """Publish a tree of ten rules and two skills, 2 kB of text, to one scenario."""
    from reefcommon.artifacts import describe
    from reefcommon.events import Release, utc_now
    from reefcommon.harness.files import write_tree
    from reefcommon.harness.tree import Entry
    from reefcommon.settings import SystemSettings
    from reefkit.artifacts.selection import open_artifact_store
    from reefkit.redis_heads import RedisReleaseHeads, connect

    rules = [
        Entry(f"r{n}", "rules", {"text": f"Rule {n}: say what was done, and why. " * 4})
        for n in range(10)
    ]
    skills = [
        Entry(
            f"s{n}",
            "skill",
            {"name": f"s{n}", "description": "a way", "text": "First this, then that. " * 10},
        )
        for n in range(2)
    ]
    with tempfile.TemporaryDirectory() as folder:
        write_tree((*rules, *skills), Path(folder))
        manifest = describe(Path(folder), "harness")
        open_artifact_store(SystemSettings(state_dir=state)).put(Path(folder), manifest, RULED)
    redis = connect(redis_url)
    await RedisReleaseHeads(redis).advance(
        Release(
            release_id="rel-ruled", scenario=RULED, sequence=0, parent_id=None, kind="harness", content_id=manifest.content_id,
            operation="creation", load_id="bench:0", created_at=utc_now(), contents={"base": "base", "harness": manifest.content_id},
        )
    )  # fmt: skip
    await redis.aclose()


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument(
        "--kinds", nargs="+", choices=["unary", "stream"], default=["unary", "stream"]
    )
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument(
        "--requests", type=int, default=300, help="unary exchanges a round; a third as many streams"
    )
    parser.add_argument("--rounds", type=int, default=9)


async def run(options: argparse.Namespace) -> Table:
    """Measure all kinds in turns."""
    if options.quick:
        options.clients, options.requests, options.rounds = 2, 30, 1
    rows: list[Row] = []
    async with gateway.servers(
        broker="memory", idempotence=True, serve=SERVE, before=with_harness
    ) as found:
        for form in options.kinds:
            stream = form == "stream"
            count = options.requests // (3 if stream else 1)
            for kind in KINDS:  # warm: code paths, connections, partitions, the tree's text
                await traffic.ask(
                    found.gateway[0], requests(kind, stream, count // 2), options.clients
                )
            rounds = [
                {
                    kind: await traffic.timed(
                        *found.gateway, requests(kind, stream, count), options.clients
                    )
                    for kind in KINDS
                }
                for _ in range(options.rounds)
            ]
            rows += [row_of(form, kind, rounds) for kind in KINDS]
            for row in rows[-len(KINDS) :]:
                tell(f"{form}, {row['kind']}: {row['cpu_ms']:.3f} ms, {row['of_chat']:.2f} of chat")
    return Table(NAME, "an exchange in each format, and with a harness", rows)


def row_of(form: str, kind: str, rounds: list[dict[str, Row]]) -> Row:
    """The rounds of a kind as a row."""
    chats = [found["chat"]["cpu_ms"] for found in rounds]
    mine = [found[kind]["cpu_ms"] for found in rounds]
    ratios = [a / b for a, b in zip(mine, chats, strict=True)]
    return {
        "form": form,
        "kind": kind,
        "cpu_ms": statistics.median(mine),
        "of_chat": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "more_ms": statistics.median(a - b for a, b in zip(mine, chats, strict=True)),
        "p50_ms": statistics.median(found[kind]["p50_ms"] for found in rounds),
    }


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
