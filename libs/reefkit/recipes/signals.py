"""The stage of signals: a unit waits here until its recipe's `signal` has spoken, once."""

#   unsignalled --signal()--> waiting                     with its signal, an event
#               |None         refused no_signal           an event too
#               |exception    again, max_attempts times, then refused `signal failed: <place>`
#               |BudgetSpent  the stage stops; the limit counts anew at the next start
#               |Unavailable  the stage pauses, longer each time; the unit goes on waiting
#               |host ends    then units under way come one by one, each a few times at most
#
# Result, writes to ctx.store and event are one transaction. Signals that the log has and the job
# store has not are read first, so that no model is asked twice.

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from reefcommon import topics
from reefcommon.errors import BadConfig, Unavailable
from reefcommon.events import SampleRefused, Signal, SignalComputed, Unit
from reefcommon.ids import digest
from reefcommon.recipe import has_signal
from reefcommon.recipe_context import BudgetSpent
from reefkit.jobs import metrics
from reefkit.jobs.faults import last_lines, place_of
from reefkit.jobs.recipe_store import Effects, StateConflict
from reefkit.jobs.usable import checked_signal, unusable
from reefkit.recipe_binding import Binding
from reefkit.recipes.runtime import RecipeContext, RecipeRuntime
from reefkit.recipes.signal_tries import CutOff, Tries
from reefkit.redis_lease import LeaseLost

log = structlog.get_logger()

RESTORED = "signals_restored"
NO_SIGNAL = "no_signal"


def signal_id(binding: Binding, unit_id: str) -> str:  # type: ignore[type-arg]
    knobs = binding.recipe.knobs.model_dump(mode="json")
    return "sig-" + digest("signal", binding.key, unit_id, knobs)


@dataclass(slots=True)
class SignalStage:
    """The stage of a binding. `ready` is called when a unit may be decided on."""

    runtime: RecipeRuntime
    ready: Callable[[], None]
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    computed: int = 0
    waits: str = ""
    last_error: str | None = None
    _cut_off: CutOff = field(init=False)
    _spent: bool = False
    _pauses: int = 0
    _paused_until: float = 0.0
    _tries: dict[str, Tries] = field(default_factory=dict)
    _running: "dict[str, asyncio.Task[None]]" = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._cut_off = CutOff(self.runtime.services.store, self._key)

    @property
    def needed(self) -> bool:
        return has_signal(self.runtime.binding.recipe)

    async def run(self) -> None:
        """Run until cancelled. Raises LeaseLost."""
        try:
            while True:
                try:
                    await self._go_on()
                except LeaseLost:
                    raise
                except Exception as error:  # noqa: BLE001  # the host's other recipes go on
                    self._pause(place_of(error))
                    log.warning("signals_put_off", binding=self._key, reason=place_of(error))
                    await asyncio.sleep(self.runtime.services.retry.delay_s(self._pauses))
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def settle(self) -> None:
        """Compute all signals that can be computed now."""
        await self._restore()
        while await self.start() or self._running:
            await asyncio.wait(self._running.values(), return_when=asyncio.FIRST_COMPLETED)
            self._collect()

    async def start(self, now: float | None = None) -> int:
        """Begin signals up to the limit; return the number of new calls."""
        services, now = self.runtime.services, now or asyncio.get_running_loop().time()
        at_once = 1 if self._cut_off.ends else services.signals_at_once
        free = at_once - len(self._running)
        if self._spent or free <= 0 or now < self._paused_until:
            return 0
        later = [name for name, tries in self._tries.items() if tries.not_before > now]
        # Units that have failed come last, so that they do not hold up the others.
        find, skipped = services.store.unsignalled, [*self._running, *self._tries]
        units = await asyncio.to_thread(find, self._key, free, skipped)
        if len(units) < free and self._tries:
            skipped = [*self._running, *later, *(unit.event_id for unit in units)]
            units += await asyncio.to_thread(find, self._key, free - len(units), skipped)
        for unit in units:
            self._running[unit.event_id] = asyncio.create_task(self._compute(unit))
        if not self._running:  # the others were refused meanwhile, as too old
            self._cut_off.ends.clear()
        return len(units)

    def facts(self) -> dict[str, object]:
        return {
            "running": len(self._running),
            "computed": self.computed,
            "waits": self.waits,
            "last_error": self.last_error,
        }

    # ------------------------------------------------------------------ inside

    @property
    def _key(self) -> str:
        return self.runtime.binding.key

    async def _go_on(self) -> None:
        await self._restore()
        while True:
            self.arrived.clear()
            now = asyncio.get_running_loop().time()
            started = await self.start(now)
            arrival = asyncio.create_task(self.arrived.wait())
            waiting = [arrival, *self._running.values()]
            timeout = None if started else self._delay_s(now)
            try:
                await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            finally:
                arrival.cancel()
            self._collect()

    # Seen from `now`, when the last start began: what was due since then would be forgotten.
    def _delay_s(self, now: float) -> float | None:
        if self._spent:
            return None
        times = [tries.not_before for tries in self._tries.values() if tries.not_before > now]
        if self._paused_until > now:
            times.append(self._paused_until)
        return max(min(times) - now, 0.01) if times else None

    def _collect(self) -> None:
        for unit_id, task in list(self._running.items()):
            if not task.done():
                continue
            del self._running[unit_id]
            error = Unavailable("cancelled") if task.cancelled() else task.exception()
            if isinstance(error, LeaseLost):
                raise error
            if error is not None:  # the job store could not be written
                self._pause(place_of(error))
                log.warning("signal_not_saved", binding=self._key, unit=unit_id, reason=repr(error))

    async def _restore(self) -> None:
        services, binding = self.runtime.services, self.runtime.binding
        await self._cut_off.look()
        if not self.needed:
            await asyncio.to_thread(services.store.need_no_signals, self._key)
            return
        known = await asyncio.to_thread(services.store.mark, self._key, RESTORED)
        if known is not None:
            return
        failures = 0
        while True:
            try:
                events = await services.signal_log() if services.signal_log is not None else ()
                break
            except Unavailable as error:
                failures += 1
                self.waits = f"the log of signals cannot be read: {error}"
                await asyncio.sleep(services.retry.delay_s(failures))
        self.waits = ""
        own = [
            event
            for event in events
            if isinstance(event, SignalComputed)
            and event.event_id == signal_id(binding, event.unit_id)
        ]
        new = await asyncio.to_thread(services.store.restore_signals, self._key, own, RESTORED)
        log.info("signals_restored", binding=self._key, new=new)

    async def _compute(self, unit: Unit) -> None:
        store, binding = self.runtime.services.store, self.runtime.binding
        stored = await asyncio.to_thread(store.signal_of, self._key, unit.event_id)
        if stored is not None:
            event_id, signal = stored
            computed = self._event(unit, signal, (0, 0)).model_copy(update={"event_id": event_id})
            await asyncio.to_thread(store.use_signal, self._key, computed, self._no_signal(unit))
            self.ready()
            return
        if (reason := unusable(binding, unit) or self._cut_off.reason(unit.event_id)) is not None:
            await self._refuse(unit, reason)
            return
        try:
            async with self._cut_off.noted(unit.event_id):
                await self._ask(unit)
        except LeaseLost:
            raise
        except BudgetSpent as error:
            self._spent, self.waits = True, str(error)
            log.warning("signals_wait_for_budget", binding=self._key, reason=str(error))
        except (Unavailable, BadConfig) as error:
            await self._put_off(unit, error, is_away=True)
        except Exception as error:  # noqa: BLE001  # the recipe is its author's code
            await self._put_off(unit, error, is_away=False)

    async def _ask(self, unit: Unit) -> None:
        services = self.runtime.services
        for _ in range(services.retry.max_attempts or 1):
            ctx = self.runtime.context(unit.event_id)
            signal = await self.runtime.call(
                self.runtime.binding.recipe.signal, unit, ctx, timeout_s=services.signal_timeout_s
            )
            # The answers of models are kept: a repeat asks nobody.
            with suppress(StateConflict):
                await self._keep(unit, checked_signal(signal), ctx)
                return
        raise StateConflict("the state that `signal` reads is changed all the time")

    async def _keep(self, unit: Unit, signal: Signal | None, ctx: RecipeContext) -> None:
        store = self.runtime.services.store
        asked = await asyncio.to_thread(store.asked_for, self._key, unit.event_id)
        computed, refusal = self._event(unit, signal, asked), self._no_signal(unit)
        effects = ctx.effects()
        await asyncio.to_thread(store.keep_signal, self._key, computed, refusal, effects)
        self._tries.pop(unit.event_id, None)
        self.computed, self._pauses = self.computed + 1, 0
        self._count("none" if signal is None else "computed")
        if not self._spent:  # another unit may have met the limit meanwhile
            self.waits = ""
        self.ready()

    async def _put_off(self, unit: Unit, error: Exception, *, is_away: bool) -> None:
        retry, now = self.runtime.services.retry, asyncio.get_running_loop().time()
        tries = self._tries.setdefault(unit.event_id, Tries(others=self.computed))
        reason = place_of(error)
        self.last_error = f"{reason}\n{last_lines(error)}" if not is_away else reason
        if is_away:
            self._pause(reason)
        # While others get their signals, the fault is this unit's.
        if not is_away or self.computed > tries.others:
            tries.failures += 1
        tries.others = self.computed
        tries.not_before = now + retry.delay_s(max(tries.failures, 1))
        self._count("put_off")
        log.warning("signal_put_off", binding=self._key, unit=unit.event_id, reason=reason)
        if retry.exhausted(tries.failures):
            await self._refuse(unit, f"signal failed: {reason}")

    def _pause(self, reason: str) -> None:
        self._pauses += 1
        delay_s = self.runtime.services.retry.delay_s(self._pauses)
        self._paused_until = asyncio.get_running_loop().time() + delay_s
        self.waits = reason

    async def _refuse(self, unit: Unit, reason: str) -> None:
        refusal = self.runtime.binding.refusal((unit, reason, None), self.runtime.services.clock())
        store, effects = self.runtime.services.store, Effects(self._key, unit.event_id)
        refusals, events = {unit.event_id: reason}, [(refusal, topics.TRAINING)]
        await asyncio.to_thread(store.refuse_unsignalled, self._key, refusals, events, effects)
        self._count("refused")
        for known in (self._tries, self._cut_off.ends):
            known.pop(unit.event_id, None)
        self.ready()

    def _count(self, outcome: str) -> None:
        metrics.SIGNALS.labels(self._key, outcome).inc()

    def _event(self, unit: Unit, signal: Signal | None, asked: tuple[int, int]) -> SignalComputed:
        binding = self.runtime.binding
        return SignalComputed(
            event_id=signal_id(binding, unit.event_id),
            at=self.runtime.services.clock(),
            scenario=unit.scenario,
            traceparent=unit.traceparent,
            recipe=binding.recipe.name,
            unit_id=unit.event_id,
            signal=signal,
            calls=asked[0],
            tokens=asked[1],
        )

    def _no_signal(self, unit: Unit) -> SampleRefused:
        now = self.runtime.services.clock()
        return self.runtime.binding.refusal((unit, NO_SIGNAL, None), now)
