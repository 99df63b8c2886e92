"""One run: start, load, faults with a recovery after each, a quiet end, facts, verdicts."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp

from tests.chaos import collect
from tests.chaos.facts import Facts, Happened
from tests.chaos.load import Book, Load, Turn
from tests.chaos.plan import Fault
from tests.chaos.stack import ReefStack, SpoolDisk, StackDied
from tests.chaos.upstream import Upstream

MAX_STALENESS = 4
CONFIG = """
reef:
  recipe: recipes.sao.recipe:SAORecipe
  batch_size: 16
  max_staleness: {max_staleness}
  policy_lr: 5.0e-3
  critic_lr: 1.0e-2
  critic_warmup_steps: 1
  lora_alpha: 32
  target_modules: [q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, lm_head]
model: tiny
evaluation:
  tasks: recipes.sao.examples.tiny.tasks:HELDOUT
  score: recipes.sao.examples.tiny.tasks:score
  policy: {policy}
  samples_per_task: 1
  max_tokens: 8
serving:
  via: {via}
"""
SERVICES = ("gateway", "experience", "trainer", "harness", "evaluator", "publisher")
RECOVER_WITHIN_S = 120.0
QUIET_WITHIN_S = 150.0
LOOK_S = 0.1
ASK = aiohttp.ClientTimeout(total=10, sock_connect=1)


@dataclass(frozen=True)
class Settings:
    """How a run is made."""

    home: Path
    seed: int
    users: int = 5
    pause_s: float = 0.25
    policy: str = "always"
    keys: float = 0.2
    """Share of the requests that bring a key of their own."""
    session_timeout_ms: int = 2_000
    hung_after_s: float = 5.0
    within_s: float = 3600.0
    """No further fault is made after this long under load."""


@dataclass
class Campaign:
    """`tell` hears what goes on, in words."""

    settings: Settings
    tell: Callable[[str], None]
    book: Book = field(default_factory=Book)
    happened: list[Happened] = field(default_factory=list)
    started_in_s: float = 0.0

    async def run(self, faults: Sequence[Fault], progressed: Callable[[int], None] = lambda _n: None) -> Facts:
        """Everything. Raises StackDied where the stack gave up."""
        self._upstream = Upstream(lambda: self._stack.url("engine"))
        disk = SpoolDisk(self.settings.home / "state")
        self._disk = disk
        self._stack = ReefStack(
            self.settings.home,
            config=CONFIG.format(max_staleness=MAX_STALENESS, policy=self.settings.policy, via=self._upstream.url),
            environment={
                "REEF_KAFKA_SESSION_TIMEOUT_MS": str(self.settings.session_timeout_ms),
                "REEF_STACK_HUNG_AFTER_S": str(self.settings.hung_after_s),
                "REEF_GATEWAY_KEY_LEASE_S": "6",  # so that keys of killed gateways are taken over while somebody still asks
                **disk.environment,
            },
        )
        try:
            async with self._upstream, aiohttp.ClientSession(timeout=ASK, trust_env=False) as self._http:
                began = time.monotonic()
                await asyncio.to_thread(self._stack.start)
                self.started_in_s = time.monotonic() - began
                self.tell(f"up in {self.started_in_s:.1f} s; the spool lies on {'a small disk' if disk.mounted else 'a small budget'}")
                facts = await self._under_load(faults, progressed)
            await asyncio.to_thread(self._stack.stop)
            records, reports, samples = await collect.read_store(self._stack.state_dir)
            jobs = collect.read_ledger(self._stack.state_dir)
            return replace(facts, records=records, stored_reports=reports, samples=samples, jobs=jobs)
        finally:
            self._stack.stop(within_s=1.0)  # has ended already, unless something went wrong
            disk.unmount()

    async def _under_load(self, faults: Sequence[Fault], progressed: Callable[[int], None]) -> Facts:
        s = self.settings
        load = Load(lambda: self._stack.url("gateway"), self.book, seed=s.seed, users=s.users, pause_s=s.pause_s, keys=s.keys)
        self._probe = Load(lambda: self._stack.url("gateway"), self.book, seed=s.seed, users=0, pause_s=1.0)
        await self._takes_keys()
        self.tell("the load begins")
        running = asyncio.create_task(load.run())
        try:
            until = time.monotonic() + s.within_s
            for fault in faults:
                if time.monotonic() > until:
                    self.tell(f"the time is over: {fault.number - 1} of {len(faults)} faults were made")
                    break
                await asyncio.sleep(fault.wait_s)
                await self._do(fault)
                progressed(fault.number)
            await self._learns_on()
            load.end()
            await asyncio.wait_for(running, 90)
            await self._quiet()
            log = await collect.read_log(self._stack.state.urls["kafka"])
            heads = await collect.read_heads(self._stack.state.urls["redis"])
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return Facts(
            answers=tuple(self.book.answers),
            reports=tuple(self.book.reports),
            log=log,
            heads=heads,
            happened=tuple(self.happened),
            max_staleness=MAX_STALENESS,
        )

    # ------------------------------------------------------------------ faults

    async def _do(self, fault: Fault) -> None:
        began = time.time()
        killed: dict[str, float] = {}
        await {
            "kill": self._kill,
            "pause": self._pause,
            "hang": self._hang,
            "outage": self._outage,
            "upstream": self._bend,
            "disk": self._full,
        }[fault.kind](fault, killed)
        over = time.time()
        ready: dict[str, float] = {}
        why = await self._recovered(tuple(part for part in fault.parts if part != "upstream"), over, ready, killed)
        done = Happened(
            fault.number, fault.kind, fault.parts, began, over, None if why else time.time(), mode=fault.mode, ready_s=ready, why_not=why
        )
        self.happened.append(done)
        back = ", ".join(f"{part} {seconds:.1f}" for part, seconds in ready.items())
        took = f"recovered in {time.time() - over:.1f} s ({back})" if not why else f"NOT RECOVERED: {why}"
        self.tell(f"{fault.number:3} {fault.kind:8} {fault.mode or '+'.join(fault.parts):32} {took}; {self.book.counts}")

    async def _kill(self, fault: Fault, killed: dict[str, float]) -> None:
        for part in fault.parts:
            if part == "serve":
                self._stack.kill()
                killed[part] = time.time()
                await asyncio.to_thread(self._stack.start)
                continue
            await self._until(lambda part=part: self._stack.signal(part, signal.SIGKILL))
            killed[part] = time.time()
            await asyncio.sleep(fault.gap_s)

    async def _pause(self, fault: Fault, killed: dict[str, float]) -> None:
        for part in fault.parts:
            await self._until(lambda part=part: self._stack.signal(part, signal.SIGSTOP))
        await asyncio.sleep(fault.seconds)
        for part in fault.parts:
            self._stack.signal(part, signal.SIGCONT)

    async def _hang(self, fault: Fault, killed: dict[str, float]) -> None:
        for part in fault.parts:
            await self._until(lambda part=part: self._stack.signal(part, signal.SIGSTOP))
            before = self._stack.find(part)
            await self._until(lambda part=part, before=before: (now := self._stack.find(part)) is not None and now != before)
            killed[part] = time.time()

    async def _outage(self, fault: Fault, killed: dict[str, float]) -> None:
        for part in fault.parts:
            self._stack.hold(part)
        await asyncio.sleep(fault.seconds)
        for part in fault.parts:
            self._stack.let_go(part)

    async def _bend(self, fault: Fault, killed: dict[str, float]) -> None:
        self._upstream.mode = fault.mode
        await asyncio.sleep(fault.seconds)
        self._upstream.mode = ""

    async def _full(self, fault: Fault, killed: dict[str, float]) -> None:
        await asyncio.to_thread(self._disk.fill)
        try:
            await self._outage(fault, killed)
        finally:
            self._disk.clear()

    async def _until(self, there: Callable[[], object]) -> None:
        deadline = time.monotonic() + RECOVER_WITHIN_S
        while not there():
            self._stack.look()
            if time.monotonic() > deadline:
                raise StackDied("a process that was to be broken did not come up; see the logs")
            await asyncio.sleep(0.02)

    # ------------------------------------------------------------------ recovery

    async def _recovered(
        self, parts: tuple[str, ...], since: float, ready: dict[str, float], killed: dict[str, float] | None = None
    ) -> str:
        """Empty once every service is ready and a fresh exchange with a fresh report has become a sample; else what is missing."""
        deadline = time.monotonic() + RECOVER_WITHIN_S
        killed = killed or {}
        why = "nothing was looked at"
        while time.monotonic() < deadline:
            self._stack.look()
            reasons = await self._unready()
            for part in parts:
                if part not in reasons and part not in ready and self._stack.find(part) is not None:
                    ready[part] = time.time() - killed.get(part, since)
            if not reasons:
                why = await self._probe_sample(deadline)
                if not why:
                    return ""
            else:
                why = "; ".join(f"{part}: {reason}" for part, reason in reasons.items())
            await asyncio.sleep(LOOK_S)
        return why

    async def _unready(self) -> dict[str, str]:
        names = (*SERVICES, "engine")
        reasons = await asyncio.gather(*(self._look_at(name) for name in names))
        found = {name: reason for name, reason in zip(names, reasons, strict=True) if reason}
        state = self._stack.state
        return found | {part: "not started" for part in state.planned if self._stack.find(part) is None}

    async def _look_at(self, name: str) -> str:
        try:
            async with self._http.get(self._stack.url(name) + ("/health" if name == "engine" else "/readyz")) as response:
                return "" if response.status == 200 else (await response.text())[:300]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return repr(error)[:200]

    async def _probe_sample(self, deadline: float) -> str:
        """One exchange, one report on it, and the sample that comes of it; what went wrong, else empty."""
        name = f"probe-{len(self.book.answers)}"
        turn = Turn(name, 0, [{"role": "user", "content": f"probe {name}"}], name, "", False, False, 1)
        answer = await self._probe.ask(self._http, turn)
        if not answer.complete:
            return f"a request fails: {answer.status} {answer.error}"
        report = await self._probe.report(self._http, (answer.receipt,), 0.5)
        if report.status != 202:
            return f"a report fails: {report.status} {report.error}"
        while time.monotonic() < deadline:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with self._http.get(f"{self._stack.url('experience')}/records/{answer.receipt}") as response:
                    if response.status == 200 and (await response.json())["samples"]:
                        return ""
            await asyncio.sleep(LOOK_S)
        return f"the report on {answer.receipt} makes no sample"

    async def _takes_keys(self) -> None:
        """A fresh stack says for some seconds that it cannot know whether a key was used before."""
        deadline = time.monotonic() + RECOVER_WITHIN_S
        why, count = await self._recovered((), time.time(), {}), 0
        while not why and time.monotonic() < deadline:
            count += 1
            key = f"first-{count}"
            answer = await Load(lambda: self._stack.url("gateway"), Book(), seed=0, users=0, pause_s=1.0).ask(
                self._http, Turn(key, 0, [{"role": "user", "content": "hello"}], "", key, False, False, 1)
            )
            if answer.complete:
                return
            await asyncio.sleep(0.5)
        raise StackDied(why or "no request with a key is answered")

    # ------------------------------------------------------------------ the end

    async def _learns_on(self) -> None:
        """Wait for a step and a release decision after the last fault, as long as there may still come one."""
        since = max((fault.over_at for fault in self.happened), default=0.0)
        deadline = time.monotonic() + QUIET_WITHIN_S
        wanted = {"steps": "at", "releases": "created_at"}
        while wanted and time.monotonic() < deadline:
            for what in tuple(wanted):
                if await self._newest(what) > since:
                    wanted.pop(what)
            await asyncio.sleep(0.5)
        self.tell("the loop went on" if not wanted else f"no new {' and '.join(wanted)} within {QUIET_WITHIN_S:.0f} s")

    async def _newest(self, what: str) -> float:
        from datetime import datetime

        service, path, field_ = {
            "steps": ("experience", "/scenarios/default/steps", "at"),
            "releases": ("gateway", "/reef/scenarios/default/releases", "created_at"),
        }[what]
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with self._http.get(self._stack.url(service) + path, params={"limit": 1}) as response:
                rows = (await response.json())["data"]
                if rows:
                    return datetime.fromisoformat(rows[0][field_]).timestamp()
        return 0.0

    async def _quiet(self) -> None:
        """Nothing under way any more: no lag, no live work, and no event on any topic for a while."""
        deadline, still = time.monotonic() + QUIET_WITHIN_S, 0
        before: object = None
        while still < 4 and time.monotonic() < deadline:
            now = await self._under_way()
            still = still + 1 if now == before and now[0] == 0 and now[1] == 0 else 0
            before = now
            await asyncio.sleep(0.7)
        self.tell("quiet" if still >= 4 else f"not quiet: {before}")

    async def _under_way(self) -> tuple[int, int, str]:
        lag, doing = 0, []
        for name in SERVICES[1:]:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with self._http.get(self._stack.url(name) + "/status") as response:
                    status = await response.json()
                    lag += sum(status["lag"].values())
                    doing.append(str(status.get("bindings") or status.get("learning") or ""))
        works: Awaitable[int] = collect.live_works(self._stack.state.urls["redis"])
        return lag, await works, "".join(doing)
