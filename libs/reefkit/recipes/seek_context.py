"""`SeekContext`: how a seeker asks, reports, waits for what was learned, and proposes."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from pathlib import Path
from typing import Any, cast, get_args

from reefcommon import ids
from reefcommon.config_sections import SERVED
from reefcommon.errors import Poison, ReefError
from reefcommon.events import Kind
from reefcommon.recipe_context import Asked, Learned, Messages, ModelFailed
from reefcommon.releases import ReleaseHeads
from reefkit.jobs.model import UNFINISHED
from reefkit.jobs.recipe_store import CallEnd, CallKey, Use
from reefkit.jobs.unit_fates import UnitFate
from reefkit.recipes.endpoint import tokens_used
from reefkit.recipes.models import check_params
from reefkit.recipes.proposals import Proposals
from reefkit.recipes.runtime import RecipeContext
from reefkit.recipes.seek_client import ExchangeAborted, SeekClient

POLL_S, POLL_AT_MOST_S = 0.05, 1.0
_SLICE_S = 60.0
ATTEMPTS = 8
SUBJECT = "#seek"
"""In place of a unit's id, for the questions that a budget has counted."""
_ENDS = frozenset(get_args(Learned))


def receipt_of(binding: str, key: str, attempt: int = 0) -> str:
    """Return the receipt under which a seeker asks: the gateway knows repeats by it."""
    again = (attempt,) if attempt else ()
    return "seek-" + ids.digest("seek", binding, key, *again)


def report_key(receipt: str) -> str:
    return "seekrep-" + ids.digest("seek report", receipt)


@dataclass(slots=True)
class SeekLife:
    """A call of `seek`. What it has left behind has no effect once it is `over`."""

    over: bool = False

    def check(self) -> None:
        """Raises SeekOver."""
        if self.over:
            raise SeekOver("this call of seek has ended; another goes on")


class SeekOver(ReefError):
    """A task that an ended call of `seek` has left behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeekerContext(RecipeContext):
    """`SeekContext` of a seeker, used on the recipe's thread. `key`: that of the binding."""

    key: str
    client: SeekClient
    proposals: Proposals
    heads: ReleaseHeads
    model_name: str
    priority: int
    life: SeekLife

    async def ask(
        self, messages: Messages, *, key: str, tags: Mapping[str, str], **params: Any
    ) -> Asked:
        """Raises also BudgetSpent: the question counts against `models["served"]`."""
        self.life.check()
        check_params(params)
        body = {**params, "messages": list(messages), "model": self.model_name}
        if self.priority:
            body["priority"] = self.priority
        counted = CallKey(self.key, SUBJECT, key, 0)
        await self.caller.on_host(self._begin(counted))
        # A gateway that died has cut off some; after a crash the same attempts are made again.
        for attempt in range(ATTEMPTS):
            receipt = receipt_of(self.key, key, attempt)
            # A session of its own: equal questions of a group are no repeats of each other.
            own = {"session": receipt, **tags}
            asked = self.client.ask(self.scenario, receipt, body, own, self._serving)
            try:
                answer = await self.caller.on_host(asked)
                break
            except ExchangeAborted:
                if attempt + 1 == ATTEMPTS:
                    raise
        try:
            choice = answer.body["choices"][0]
            message: Mapping[str, Any] = choice["message"]
            text, finish = str(message.get("content") or ""), choice.get("finish_reason")
            use = Use(0, *tokens_used(answer.body, len(str(body)), len(text)))
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise ModelFailed(f"the answer to {key!r} cannot be read: {error!r}") from None
        await self.caller.on_host(self._end(counted, use))
        load_id = await self.caller.on_host(self._load_of(answer.release_id))
        return Asked(receipt, text, message, finish, answer.release_id, load_id)

    async def report(
        self,
        receipt: str,
        score: float,
        *,
        feedback: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises Poison if it was reported on with other content, or the score is not finite."""
        self.life.check()
        if not isfinite(score):  # it would travel as a report without a score
            raise Poison(f"a report's score is a finite number, not {score}")
        body: dict[str, Any] = {
            "references": [receipt],
            "score": float(score),
            "agent_record_id": report_key(receipt),
        }
        if feedback is not None:
            body["feedback"] = feedback
        if metadata is not None:
            body["metadata"] = dict(metadata)
        await self.caller.on_host(self.client.report(self.scenario, body))

    async def learned(self, receipts: Sequence[str]) -> Learned:
        units = {ids.sample_id(report_key(name), (name,)): name for name in receipts}
        began = time.monotonic()
        while True:
            self.life.check()
            fates = await self.caller.on_host(asyncio.to_thread(self._fates, units))
            if (end := learned_from(list(units.values()), fates)) is not None:
                return end
            # So that a step of seconds is not seen a second late.
            waited_s = time.monotonic() - began
            await asyncio.sleep(min(max(waited_s / 20, POLL_S), POLL_AT_MOST_S))

    async def publish(
        self, kind: Kind, directory: Path, *, metrics: Mapping[str, float], reason: str
    ) -> str:
        self.life.check()
        proposed = self.proposals.propose(kind, directory, metrics=metrics, reason=reason)
        return await self.caller.on_host(proposed)

    async def commit(self) -> None:
        self.life.check()
        # Without an await: no other coroutine of the recipe writes in between.
        # The keys of a committed step are not asked for again: they need not be known any more.
        self.services.store.apply(self.store.effects(SUBJECT))
        self.store.saved()

    async def sleep_until(self, when: datetime) -> None:
        while (left := (when - self.now()).total_seconds()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left, _SLICE_S))  # the clock may be set meanwhile

    async def _begin(self, counted: CallKey) -> None:
        # Once for each key: after a crash the same questions cost nothing.
        if (budget := self.services.models.budgets.get(SERVED)) is not None:
            await budget.begin(counted)

    async def _end(self, counted: CallKey, use: Use) -> None:
        budget, store = self.services.models.budgets.get(SERVED), self.services.store
        if budget is None or await asyncio.to_thread(store.kept_answer, counted) is not None:
            return
        # The answer itself is kept by the gateway, and is a record.
        end = CallEnd(self.key, SUBJECT, SERVED, SUBJECT, use, 0.0, body=b"counted")
        await budget.end(counted, end, logged=False)

    def _serving(self) -> str | None:
        head = self.head
        return head.release_id if head is not None else None

    def _fates(self, units: Mapping[str, str]) -> dict[str, UnitFate]:
        """Return the fates of units by receipt."""
        store = self.services.store
        found = store.fates_of_records(self.key, units.values())
        return found | {units[unit]: fate for unit, fate in store.fates(self.key, units).items()}

    async def _load_of(self, release_id: str) -> str:
        head = self.head
        if head is not None and head.release_id == release_id:
            return head.load_id
        release = await self.heads.release(self.scenario, release_id) if release_id else None
        return release.load_id if release is not None else ""


def learned_from(receipts: Sequence[str], fates: Mapping[str, UnitFate]) -> Learned | None:
    """Return the end of the last job that used the units; None while any may still be used."""
    last = UnitFate("refused")
    for receipt in receipts:
        fate = fates.get(receipt)
        if fate is None or fate.unit not in ("used", "refused") or fate.job in UNFINISHED:
            return None
        if fate.job is not None and fate.number > last.number:
            last = fate
    return cast("Learned", last.job) if last.job in _ENDS else "refused"
