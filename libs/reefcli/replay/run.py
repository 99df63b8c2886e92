"""A replay from its beginning to its verdict."""

import asyncio
import contextlib
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from pydantic import TypeAdapter

from reefcli.errors import CommandFailed
from reefcli.replay import heads as release_heads
from reefcli.replay.compare import Comparison, Kind, Row, RunningStore
from reefcli.replay.log import LogReader, asking, committed, open_log
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
from services.experience.wants import Period, Periods, Wants

# Longer than the service's pause between two sweeps, in which reports expire and sessions end.
GIVE_UP_AFTER = 15  # looks at a row that stays different while both sides have handled the same log
HEAD_LOOKS = 3
# Rows of a busy system settle within seconds; a minute means that they do not.
SETTLE_S = 60.0
# The running service commits several times in this time.
LOOK_AGAIN_S = 0.5
# Tables whose rows may be older than the log, with the topic whose beginning tells it.
AGED_BY: Mapping[str, str] = {"steps": "reef.training.v1", "refusals": "reef.training.v1"}

Say = Callable[[str, int, int], None]
"""(activity, done, total)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The systems and files of a replay. `into`: a directory (chDB) or a URL (a server).

    `config`: the `serve.yaml` whose recipes say which units a restore makes.
    """

    bootstrap: str
    redis_url: str
    experience_url: str
    bodies: Path
    into: str
    checkpoint: Checkpoint
    restore: bool
    config: Path | None = None
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
    units_made: int = 0
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
        rate = round((self.events - self.resumed_at) / self.seconds) if self.seconds else 0
        return {**asdict(self), "seconds": round(self.seconds, 2), "events_per_s": rate}


async def replay(plan: Plan, say: Say) -> Verdict:
    """Read the log into a store and compare it with the running one, unless it is a restore.

    Raises:
        CommandFailed, Unavailable, BadConfig: the same call goes on from there.
    """
    # Before the log is read, not after it.
    periods = None if plan.restore else await _check_running(plan)
    if plan.fresh:
        discard(plan)
    positions = plan.checkpoint.read()
    group, sources = SERVICE if plan.restore else "", [topic.name for topic in SOURCES]
    log = await open_log(plan.bootstrap, sources, positions, group=group)
    async with _store(plan) as new:
        run = _Run(plan, say, log, new, Verdict(into=plan.into))
        run.verdict.resumed_at = log.read()
        await new.begin(periods, resumed=positions is not None)
        plan.checkpoint.write(log.positions)
        await run.read()
        if not plan.restore:
            await run.compare()
    run.verdict.compared = not plan.restore
    run.verdict.equal = not plan.restore and not run.verdict.different
    if not plan.keep:
        discard(plan)
    return run.verdict


async def _check_running(plan: Plan) -> Periods:
    """Return the times in which the running service makes units."""
    await release_heads.reachable(plan.redis_url)
    url = plan.experience_url
    try:
        async with httpx.AsyncClient(base_url=url, timeout=10.0, trust_env=False) as http:
            status = (await http.get("/status")).raise_for_status().json()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        fault = f"no experience service answers at {url} ({error})"
        remedy = "Start it, or build a store in its place with --into"
        raise CommandFailed(f"{fault}; there is nothing to compare with. {remedy}") from None
    return Periods(tuple(TypeAdapter(list[Period]).validate_python(status["wanted_units"])))


@dataclass(frozen=True, slots=True)
class _Run:
    plan: Plan
    say: Say
    log: LogReader
    new: Rebuild
    verdict: Verdict

    async def read(self) -> None:
        began = time.perf_counter()
        async for batch in self.log.batches(self.new.settings.batch_records):
            await self.new.take(batch)
            self.plan.checkpoint.write(self.log.positions)
            self.say("reading the log", self.log.read(), self.log.total())
        await self.new.settle(end_sessions=not self.plan.restore)
        self.verdict.seconds += time.perf_counter() - began
        self.verdict.events = self.log.read()
        self.verdict.samples_made = self.new.nowhere.samples
        self.verdict.units_made = self.new.nowhere.units
        self.verdict.dead_letters = dict(self.new.nowhere.dead)

    async def compare(self) -> None:
        """Compare rows until they are equal or stay different, then the heads."""
        url = self.plan.experience_url
        async with httpx.AsyncClient(base_url=url, timeout=120.0, trust_env=False) as http:
            comparison = Comparison(RunningStore(http), self.new.audit)
            await self._until_level()
            self.say("comparing rows", 0, 0)
            await comparison.whole()
            rounds, before, deadline = 0, -1, time.monotonic() + SETTLE_S
            while comparison.differing and rounds < GIVE_UP_AFTER and time.monotonic() < deadline:
                self.say("comparing suspects once more", comparison.differing, 0)
                await asyncio.sleep(LOOK_AGAIN_S)
                await self.read()
                await self._until_level()
                await comparison.again()
                # Only rounds without progress count.
                rounds = rounds + 1 if comparison.differing == before else 0
                before = comparison.differing
            self.verdict.rows = dict(comparison.rows)
            kept_days = int((await http.get("/status")).json().get("kept_days", 0))
            kept_from = time.time() - kept_days * 86_400 if kept_days else 0.0
            for table, suspects in comparison.suspects.items():
                await self._tell_table(comparison, table, suspects, kept_from)
        self.say("comparing release heads", 0, 0)
        await self._compare_heads()

    async def _until_level(self) -> None:
        deadline = time.monotonic() + SETTLE_S
        while True:
            read = self.log.positions
            with asking(self.plan.bootstrap):
                handled = await committed(self.plan.bootstrap, SERVICE, read)
            if not (behind := sum(max(read[tp] - (n or 0), 0) for tp, n in handled.items())):
                return
            if time.monotonic() > deadline:
                fault = f"the running experience service stays {behind} events of the log behind"
                raise CommandFailed(f"{fault}; see `reef status`, then replay again")
            await asyncio.sleep(LOOK_AGAIN_S / 4)

    async def _tell_table(
        self, comparison: Comparison, table: str, suspects: Mapping[Row, Kind], kept_from: float
    ) -> None:
        """Note the differences of a table. Rows past their retention are only counted."""
        log_from = self.log.first_at_ms.get(AGED_BY.get(table, ""), 0) / 1000
        sides = {
            "extra": (comparison.running, log_from, self.verdict.older_than_the_log),
            "missing": (comparison.replayed, kept_from, self.verdict.past_their_time),
        }
        counts: Counter[str] = Counter()
        for key, kind in suspects.items():
            if kind in sides:
                side, limit, old = sides[kind]
                if await _before(side, table, key, limit):
                    old[table] = old.get(table, 0) + 1
                    continue
            counts[kind] += 1
            if len(self.verdict.differences) < self.plan.shown:
                fields = await comparison.fields(table, key) if kind == "differs" else {}
                self._note(table, " ".join(key), kind, fields)
        if counts:
            self.verdict.different[table] = dict(counts)

    async def _compare_heads(self) -> None:
        plan = self.plan
        log = KafkaTopicLog(topics.RELEASES, plan.bootstrap, FilesystemBodies(plan.bodies))
        mark = digest(plan.into, length=8)
        for _ in range(HEAD_LOOKS):
            self.verdict.releases, found = await release_heads.compare(plan.redis_url, log, mark)
            if not found:
                return
            await asyncio.sleep(LOOK_AGAIN_S)  # a release may have come between two reads
        self.verdict.different["heads"] = {"differs": len(found)}
        for name, sides in [*found.items()][: plan.shown]:
            self._note("heads", name, "differs", {"release": sides})

    def _note(self, table: str, name: str, kind: str, fields: Any) -> None:
        difference = {"table": table, "id": name, "kind": kind, "fields": fields}
        self.verdict.differences.append(difference)


async def _before(side: Audit, table: str, key: Row, limit: float) -> bool:
    if not limit:
        return False
    row = await side.row(table, key) or {}
    at = row.get("last_at" if table == "sessions" else "at", "~").strip("'")
    return at < time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(limit))


@contextlib.asynccontextmanager
async def _store(plan: Plan) -> AsyncIterator[Rebuild]:
    server = "://" in plan.into
    database = Database.server(plan.into) if server else Database.embedded(Path(plan.into))
    try:
        yield Rebuild(database, plan.bodies, Settings.load(), Wants.read(plan.config))
    except Unavailable as error:
        if "lock" in str(error).lower():
            remedy = f"stop it first, or name another place ({error})"
            raise CommandFailed(f"{plan.into} is in use by another process: {remedy}") from None
        raise
    finally:
        with contextlib.suppress(ReefError):
            await database.close()


def discard(plan: Plan) -> None:
    """Remove the new store, if it is a directory, and the progress file."""
    if "://" not in plan.into:
        shutil.rmtree(plan.into, ignore_errors=True)
    plan.checkpoint.path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # another replay's is there, or nothing ever was
        plan.checkpoint.path.parent.rmdir()
