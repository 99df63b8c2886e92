"""A host whose recipe ends its process in one of its calls, as a process: HOME WHERE. A second recipe is sound."""

import asyncio
import json
import os
import sys
from pathlib import Path

from reefcommon.recipe import Knobs
from tests.jobs.words import WordsRecipe
from tests.seek.rig import SeekRig
from tests.seek.world import World


class Ending(WordsRecipe):
    """Ends the process in the call `where`; "": in none."""

    def __init__(self, where: str) -> None:
        super().__init__(Knobs())
        self.where = where

    def decide(self, waiting):
        self._end("decide")
        return super().decide(waiting)

    async def on_verdict(self, judged, ctx):
        self._end("on_verdict")
        ctx.store.put("judged", judged.reason)

    def _end(self, call: str) -> None:
        if call == self.where:
            os._exit(9)


class EndingSeeker(Ending):
    """It seeks, too."""

    async def seek(self, ctx):
        self._end("seek")
        ctx.store.put("sought", True)


async def main(home: Path, where: str) -> None:
    rig = SeekRig(home, World(), EndingSeeker(where), Ending(""))
    loops = rig.handlers.loops
    works = [work.run() for loop in loops for work in loop.tasks()]
    tasks = [asyncio.ensure_future(work) for work in works]
    await asyncio.sleep(1.0)
    facts = [loop.facts() for loop in loops]
    shown = [[row["failing"], row["seek"] and row["seek"]["state"], row["jobs"]] for row in facts]
    sys.stdout.write(json.dumps(shown))
    sys.stdout.flush()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
