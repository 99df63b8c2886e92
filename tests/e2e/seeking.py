"""Two seekers: SAO with two grids of four questions, each verified by a program in the sandbox, and row patterns with a verifier that waits for a file."""

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import ClassVar

from recipes.sao.recipe import SAORecipe
from recipes.ttt_discover.examples.row_pattern.problem import RowPattern
from reefcommon.recipe import Dimensions, EvaluationPlan

VERIFIER = "text = input(); print(sum(letter.islower() for letter in text) / max(len(text), 1))"
STEPS, ROLLOUTS = 2, 4


class SeekingSAO(SAORecipe):
    name: ClassVar[str] = "seeking_sao"
    summary: ClassVar[str] = "for tests: SAO on questions of its own"
    dimensions: ClassVar[Dimensions] = Dimensions(
        signal="a verifier's score", acquisition="proactive", evolves=("lora", "solution")
    )

    def evaluation(self):
        return EvaluationPlan(policy="always")

    async def seek(self, ctx):
        while (step := ctx.store.get("step", 0)) < STEPS:
            tried = await asyncio.gather(*(self.attempt(ctx, step, n) for n in range(ROLLOUTS)))
            end = await ctx.learned([receipt for receipt, _ in tried])
            ctx.store.put("history", [*ctx.store.get("history", []), [step, end, tried]])
            ctx.store.put("step", step + 1)
            await ctx.commit()
        with tempfile.TemporaryDirectory() as name:
            history = json.dumps(ctx.store.get("history"))
            (Path(name) / "history.json").write_text(history)
            await ctx.publish("solution", Path(name), metrics={"steps": STEPS}, reason="all asked")

    async def attempt(self, ctx, step, number):
        question = [{"role": "user", "content": f"question {step}"}]
        asked = await ctx.ask(
            question, key=f"{step}/{number}", tags={"step": str(step)}, seed=number, max_tokens=8
        )
        text = " ".join(asked.text.split()) or "-"
        verified = await ctx.run(VERIFIER, stdin=text)
        assert verified.status == "ok", verified
        await ctx.report(asked.receipt, float(verified.stdout))
        return asked.receipt, float(verified.stdout)


class GatedRows(RowPattern):
    """No answer is verified before the file of `SEEK_GATE` is there, so that a kill comes before that."""

    async def verify(self, answer, ctx):
        while (gate := os.environ.get("SEEK_GATE")) and not Path(gate).exists():
            await asyncio.sleep(0.05)
        return self.score(answer)


GATED_ROWS = GatedRows(26)
