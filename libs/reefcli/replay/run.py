"""A replay from its beginning to its verdict."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from reefcli.errors import CommandFailed
from reefcli.replay import heads as release_heads
from reefcli.replay.compare import Comparison, Row, RunningStore
from reefcli.replay.log import LogReader, committed, open_log
from reefcli.replay.rebuild import Checkpoint, Rebuild
from reefcommon import topics
from reefcommon.errors import ReefError, Unavailable
from reefcommon.ids import digest
from reefkit.bodies import FilesystemBodies
from reefkit.kafka_topic_log import KafkaTopicLog
from services.experience.app import SERVICE, SOURCES
from services.experience.clickhouse import Database
from services.experience.clickhouse.audit import IGNORED
from services.experience.ports import Audit
from services.experience.settings import Settings

GIVE_UP_AFTER = 3  # looks at a row that stays different while both sides have handled the same log
SETTLE_S = 60.0
LOOK_AGAIN_S = 0.5
# The topic whose age tells that the log cannot know a row any more, with the column that says when it came.
AGED_BY: Mapping[str, str] = {"steps": "reef.training.v1", "refusals": "reef.training.v1"}

Say = Callable[[str, int, int], None]
"""(what is being done, how much of it is done, how much there is)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The systems and files of a replay. `into`: a directory (chDB) or a URL (a server)."""

    log_id: str
    """What the log is called beside the place that was reached in it: going on with another log would mix two."""
    bootstrap: str
    redis_url: str
    experience_url: str
    bodies: Path
    into: str
    checkpoint: Path
    restore: bool
    keep: bool = False
    fresh: bool = False
    shown: int = 20


@dataclass(slots=True)
class Verdict:
    """The result of a replay."""

    equal: bool = False
    compared: bool = True
    events: int = 0
    resumed_at: int = 0
    seconds: float = 0.0
    rows: dict[str, int] = field(default_factory=dict)
    releases: int = 0
    samples_made: int = 0
    dead_letters: dict[str, int] = field(default_factory=dict)
    different: dict[str, dict[str, int]] = field(default_factory=dict)
    older_than_the_log: dict[str, int] = field(default_factory=dict)
    past_their_time: dict[str, int] = field(default_factory=dict)
    differences: list[dict[str, Any]] = field(default_factory=list)
    into: str = ""
    ignored: dict[str, dict[str, str]] = field(
        default_factory=lambda: {table: dict(why) for table, why in IGNORED.items()}
    )

    def as_json(self) -> dict[str, Any]:
        """Return the verdict for programs."""
        rate = round((self.events - self.resumed_at) / self.seconds) if self.seconds else 0
        return {**asdict(self), "seconds": round(self.seconds, 2), "events_per_s": rate}


async def replay(plan: Plan, say: Say) -> Verdict:
    """Read the log into a store and compare it with the running one (not if it is a restore).

    Raises:
        CommandFailed, Unavailable, BadConfig: the same call goes on from there.
    """
    verdict = Verdict(into=plan.into)
    if not plan.restore:
        await _check_running(plan)
    checkpoint = Checkpoint(plan.checkpoint)
    if plan.fresh:
        discard(plan)
    positions = checkpoint.read(plan.log_id)
    async with contextlib.AsyncExitStack() as stack:
        until = SERVICE if plan.restore else None
        sources = [topic.name for topic in SOURCES]
        log = await stack.enter_async_context(
            open_log(plan.bootstrap, sources, positions=positions, until_committed_of=until)
        )
        new = await stack.enter_async_context(_store(plan))
        verdict.resumed_at = log.read()
        await new.begin(resumed=positions is not None)
        checkpoint.write(plan.log_id, log.positions)
        await _read(plan, log, new, checkpoint, verdict, say)
        if not plan.restore:
            await _compare(plan, log, new, checkpoint, verdict, say)
    verdict.compared = not plan.restore
    verdict.equal = not plan.restore and not verdict.different
    if not plan.keep:
        discard(plan)
    return verdict


async def _check_running(plan: Plan) -> None:
    await release_heads.reachable(plan.redis_url)
    try:
        async with httpx.AsyncClient(
            base_url=plan.experience_url, timeout=10.0, trust_env=False
        ) as http:
            (await http.get("/healthz")).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CommandFailed(
            f"no experience service answers at {plan.experience_url} ({error}); there is nothing to compare with. "
            "Start it, or build a store in its place with --into"
        ) from None


async def _read(
    plan: Plan, log: LogReader, new: Rebuild, checkpoint: Checkpoint, verdict: Verdict, say: Say
) -> None:
    began = time.perf_counter()
    async for batch in log.batches(new.settings.batch_records):
        await new.take(batch)
        checkpoint.write(plan.log_id, log.positions)
        say("reading the log", log.read(), log.total())
    await new.settle()
    verdict.seconds += time.perf_counter() - began
    verdict.events = log.read()
    verdict.samples_made = new.nowhere.samples
    verdict.dead_letters = dict(new.nowhere.dead)


async def _compare(
    plan: Plan, log: LogReader, new: Rebuild, checkpoint: Checkpoint, verdict: Verdict, say: Say
) -> None:
    async with httpx.AsyncClient(
        base_url=plan.experience_url, timeout=120.0, trust_env=False
    ) as http:
        comparison = Comparison(RunningStore(http), new.audit)
        await _until_level(plan, log)
        say("comparing rows", 0, 0)
        await comparison.whole()
        rounds, before, deadline = 0, -1, time.monotonic() + SETTLE_S
        while comparison.differing and rounds < GIVE_UP_AFTER and time.monotonic() < deadline:
            say("looking again at what differs", comparison.differing, 0)
            await asyncio.sleep(LOOK_AGAIN_S)
            await _read(plan, log, new, checkpoint, verdict, say)
            await _until_level(plan, log)
            await comparison.again()
            rounds = rounds + 1 if comparison.differing == before else 0
            before = comparison.differing
        verdict.rows = dict(comparison.rows)
        kept_days = int((await http.get("/status")).json().get("kept_days", 0))
        await _tell_rows(plan, log, comparison, verdict, kept_days)
    say("comparing release heads", 0, 0)
    await _compare_heads(plan, verdict)


async def _until_level(plan: Plan, log: LogReader) -> None:
    deadline = time.monotonic() + SETTLE_S
    while True:
        handled = await committed(plan.bootstrap, SERVICE, log.partitions)
        behind = sum(max(log.positions[tp] - handled[tp], 0) for tp in log.partitions)
        if not behind:
            return
        if time.monotonic() > deadline:
            raise CommandFailed(
                f"the running experience service has {behind} events of the log to handle and does not get there; "
                "see `reef status`, then replay again"
            )
        await asyncio.sleep(LOOK_AGAIN_S / 4)


async def _tell_rows(
    plan: Plan, log: LogReader, comparison: Comparison, verdict: Verdict, kept_days: int
) -> None:
    kept_from = time.time() - kept_days * 86_400 if kept_days else 0.0
    for table, rows in comparison.suspects.items():
        counts: dict[str, int] = {}
        for key, kind in rows.items():
            if kind == "extra" and await _before(
                comparison.running,
                table,
                key,
                log.first_at_ms.get(AGED_BY.get(table, ""), 0) / 1000,
            ):
                verdict.older_than_the_log[table] = verdict.older_than_the_log.get(table, 0) + 1
                continue
            if kind == "missing" and await _before(comparison.replayed, table, key, kept_from):
                verdict.past_their_time[table] = verdict.past_their_time.get(table, 0) + 1
                continue
            counts[kind] = counts.get(kind, 0) + 1
            if len(verdict.differences) < plan.shown:
                fields = await comparison.fields(table, key) if kind == "differs" else {}
                verdict.differences.append(
                    {"table": table, "id": " ".join(key), "kind": kind, "fields": fields}
                )
        if counts:
            verdict.different[table] = counts


async def _before(side: Audit, table: str, key: Row, limit: float) -> bool:
    """Whether the row is from before a time (Unix seconds)."""
    if not limit:
        return False
    row = await side.row(table, key) or {}
    return row.get("last_at" if table == "sessions" else "at", "~").strip("'") < time.strftime(
        "%Y-%m-%d %H:%M:%S", time.gmtime(limit)
    )


async def _compare_heads(plan: Plan, verdict: Verdict) -> None:
    log = KafkaTopicLog(topics.RELEASES, plan.bootstrap, FilesystemBodies(plan.bodies))
    async with release_heads.open_heads(plan.redis_url, log, digest(plan.into, length=8)) as heads:
        for _ in range(GIVE_UP_AFTER):
            verdict.releases, found = await heads.compare()
            if not found:
                return
            await asyncio.sleep(LOOK_AGAIN_S)  # a release may have come between two reads
    verdict.different["heads"] = {"differs": len(found)}
    for one in found[: plan.shown]:
        fields = {"release": {"running": one.running, "replayed": one.replayed}}
        verdict.differences.append(
            {
                "table": "heads",
                "id": f"{one.scenario} {one.what}",
                "kind": "differs",
                "fields": fields,
            }
        )


@contextlib.asynccontextmanager
async def _store(plan: Plan) -> AsyncIterator[Rebuild]:
    database = (
        Database.server(plan.into) if "://" in plan.into else Database.embedded(Path(plan.into))
    )
    try:
        yield Rebuild.on(database, plan.bodies, Settings.load())
    except Unavailable as error:
        if "lock" in str(error).lower():
            raise CommandFailed(
                f"{plan.into} is in use by another process: stop it first, or name another place ({error})"
            ) from None
        raise
    finally:
        with contextlib.suppress(ReefError):
            await database.close()


def discard(plan: Plan) -> None:
    """Remove the new store, if it is a directory, and the progress file."""
    if "://" not in plan.into:
        shutil.rmtree(plan.into, ignore_errors=True)
    Checkpoint(plan.checkpoint).forget()
    with contextlib.suppress(OSError):  # another replay's is there, or nothing ever was
        plan.checkpoint.parent.rmdir()
