"""One run: start, load, faults with a recovery after each, a quiet end, facts, verdicts."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp

from tests.chaos import collect
from tests.chaos.breaking import Breaking
from tests.chaos.facts import Facts, Happened
from tests.chaos.load import Book, Load
from tests.chaos.plan import Fault
from tests.chaos.recovery import Recovery
from tests.chaos.settling import Settling
from tests.chaos.stack import SPOOL_DISK_BYTES, ReefStack, SpoolDisk
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
ASK = aiohttp.ClientTimeout(total=10, sock_connect=1)


@dataclass(frozen=True)
class Settings:
    """How a run is made."""

    home: Path
    seed: int
    users: int = 5
    pause_s: float = 0.25
    spool_bytes: int = SPOOL_DISK_BYTES
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

    async def run(
        self, faults: Sequence[Fault], progressed: Callable[[int], None] = lambda _n: None
    ) -> Facts:
        """Everything. Raises StackDied where the stack gave up."""
        upstream, disk = (
            Upstream(lambda: stack.url("engine")),
            SpoolDisk(self.settings.home / "state", self.settings.spool_bytes),
        )
        stack = self._new_stack(upstream.url, disk.environment)
        try:
            async with upstream, aiohttp.ClientSession(timeout=ASK, trust_env=False) as http:
                began = time.monotonic()
                await asyncio.to_thread(stack.start)
                self.started_in_s = time.monotonic() - began
                self.tell(
                    f"up in {self.started_in_s:.1f} s; the spool lies on {'a disk of its own' if disk.mounted else 'a small budget'}"
                )
                facts = await self._under_load(
                    http, Breaking(stack, upstream, disk), faults, progressed
                )
            await asyncio.to_thread(stack.stop)
            records, reports, samples = await collect.read_store(stack.state_dir)
            return replace(
                facts,
                records=records,
                stored_reports=reports,
                samples=samples,
                jobs=collect.read_ledger(stack.state_dir),
            )
        finally:
            stack.stop(within_s=1.0)  # has ended already, unless something went wrong
            disk.unmount()

    def _new_stack(self, engine_url: str, environment: dict[str, str]) -> ReefStack:
        return ReefStack(
            self.settings.home,
            config=CONFIG.format(
                max_staleness=MAX_STALENESS, policy=self.settings.policy, via=engine_url
            ),
            environment={
                "REEF_KAFKA_SESSION_TIMEOUT_MS": str(self.settings.session_timeout_ms),
                "REEF_STACK_HUNG_AFTER_S": str(self.settings.hung_after_s),
                "REEF_STACK_HOUSEKEEPING_EVERY_S": "10",  # the log is merged all the while, and whoever does it dies with the rest
                "REEF_STACK_MERGE_LEAST": "16",
                "REEF_GATEWAY_KEY_LEASE_S": "6",  # so that keys of killed gateways are taken over while somebody still asks
                **environment,
            },
        )

    async def _under_load(
        self,
        http: aiohttp.ClientSession,
        breaking: Breaking,
        faults: Sequence[Fault],
        progressed: Callable[[int], None],
    ) -> Facts:
        s, stack = self.settings, breaking.stack
        load = Load(
            lambda: stack.url("gateway"),
            self.book,
            seed=s.seed,
            users=s.users,
            pause_s=s.pause_s,
            keys=s.keys,
        )
        probe = Load(lambda: stack.url("gateway"), self.book, seed=s.seed, users=0, pause_s=1.0)
        recovery, settling = (
            Recovery(stack, http, probe, self.book),
            Settling(stack, http, self.tell),
        )
        await recovery.takes_keys()
        self.tell("the load begins")
        running = asyncio.create_task(load.run())
        try:
            until = time.monotonic() + s.within_s
            for fault in faults:
                if time.monotonic() > until:
                    self.tell(
                        f"the time is over: {fault.number - 1} of {len(faults)} faults were made"
                    )
                    break
                await asyncio.sleep(fault.wait_s)
                await self._one(fault, breaking, recovery)
                progressed(fault.number)
            await settling.learns_on(max((fault.over_at for fault in self.happened), default=0.0))
            load.end()
            await asyncio.wait_for(running, 90)
            await settling.quiet(max((fault.seconds for fault in faults), default=0.0))
            log = await collect.read_log(stack.state.urls["kafka"])
            heads = await collect.read_heads(stack.state.urls["redis"])
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

    async def _one(self, fault: Fault, breaking: Breaking, recovery: Recovery) -> None:
        """Break, let go, wait until all is well, and note it."""
        began = time.time()
        killed = await breaking.do(fault)
        over = time.time()
        ready: dict[str, float] = {}
        why = await recovery.recovered(
            tuple(part for part in fault.parts if part != "upstream"),
            over,
            ready,
            killed,
            fault.seconds,
        )
        done = Happened(
            fault.number,
            fault.kind,
            fault.parts,
            began,
            over,
            None if why else time.time(),
            mode=fault.mode,
            ready_s=ready,
            why_not=why,
        )
        self.happened.append(done)
        back = ", ".join(f"{part} {seconds:.1f}" for part, seconds in ready.items())
        took = (
            f"recovered in {time.time() - over:.1f} s ({back})"
            if not why
            else f"NOT RECOVERED: {why}"
        )
        self.tell(
            f"{fault.number:3} {fault.kind:8} {fault.mode or '+'.join(fault.parts):32} {took}; {self.book.counts}"
        )
