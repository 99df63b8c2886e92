"""A recipe with a signal for the host's tests: a judge votes on each unit."""

import asyncio
import os

from reefcommon.config_sections import ModelEndpoint
from reefcommon.events import Signal
from reefcommon.recipe import Decision
from tests.jobs.words import WordsRecipe

VOTES = 3


def endpoint(judge, **limits):
    return {"judge": ModelEndpoint(url=judge.url, model="judge-1", timeout_s=1.0, **limits)}


class JudgedRecipe(WordsRecipe):
    """Takes two units at a time, with the votes on their words. Counts its units in `ctx.store`."""

    name = "judged"

    async def signal(self, unit, ctx):
        if unit.feedback == "silent":
            return None
        if unit.feedback == "odd":
            raise ZeroDivisionError("words of a user")
        if unit.feedback == "deadly":
            os._exit(7)
        judge = ctx.models["judge"]
        question = [{"role": "user", "content": unit.feedback}]
        votes = await asyncio.gather(
            *(judge.chat(question, purpose="vote", temperature=1.0) for _ in range(VOTES))
        )
        hint = await judge.chat([{"role": "user", "content": "hint"}], purpose="hint")
        seen = ctx.store.get("seen", [])
        ctx.store.put("seen", [*seen, unit.event_id])
        better = sum(vote[0].text == "better" for vote in votes)
        return Signal(score=float(better), words=hint[0].text, labels={"votes": float(better)})

    def decide(self, waiting):
        assert all(unit.signal is not None for unit in waiting)
        return Decision(batch=tuple(waiting[:2]) if len(waiting) >= 2 else ())
