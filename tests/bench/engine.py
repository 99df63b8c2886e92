"""The embedded engine's tokens per second beside `transformers.generate` with the same model, in one process and one thread of torch.

    python -m tests.bench.engine [--model smollm2|tiny] [--batches 1 8 32] [--tokens 48] [--rounds 2]

Both sample at temperature 1 without filters, never stop early, and read the same 37-token prompts. `generate` gets each batch whole.
`staggered`: requests that arrive one after another, half a dozen tokens apart: the engine lets each join the running batch, `generate` has to
end one call before it begins the next. Rounds take turns, so that both see the same machine; the ratio is the figure to compare.
The engine records token ids and log-probabilities, as in production; `generate` does not.
"""

import argparse
import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench import harness
from tests.bench.harness import Table, tell

NAME = "engine"
WHAT = "tokens per second of the embedded engine beside transformers.generate"
PROMPT = (
    "Write a short note about the sea, the wind and a small boat that comes home in the evening."
)
STAGGERED = 8


def arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument(
        "--model",
        default="smollm2",
        help="smollm2 (135M parameters), tiny, or a Hugging Face directory",
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=48, help="new tokens a request")
    parser.add_argument("--rounds", type=int, default=2)


class Ours:
    """The engine as its routes use it, without HTTP."""

    def __init__(self, path: Path, events: asyncio.AbstractEventLoop) -> None:
        from services.engine.app import build_engine
        from services.engine.domain.sampling import SamplingParams
        from services.engine.settings import Settings

        self.engine = build_engine(Settings(model_path=path, seed=1), events)
        self.engine.loop.start()
        self.params = SamplingParams(max_tokens=1, ignore_eos=True, logprobs=0)
        prompt = self.engine.tokenizer.render(
            [{"role": "user", "content": PROMPT}], (), {"add_generation_prompt": True}
        )
        self.ids = self.engine.encode(prompt, "prompt")

    async def one(self, tokens: int) -> float:
        """One request; when it ended."""
        generation = self.engine.generate(
            [self.ids], [replace(self.params, max_tokens=tokens)], None
        )
        async for _ in generation.events():
            pass
        return time.perf_counter()

    async def batch(self, size: int, tokens: int) -> float:
        """Tokens per second of requests that come at once."""
        started = time.perf_counter()
        ended = await asyncio.gather(*(self.one(tokens) for _ in range(size)))
        return size * tokens / (max(ended) - started)

    async def staggered(self, gap_s: float, tokens: int) -> float:
        """Tokens per second, from the first arrival to the last end."""
        started = time.perf_counter()

        async def later(number: int) -> float:
            await asyncio.sleep(number * gap_s)
            return await self.one(tokens)

        ended = await asyncio.gather(*(later(number) for number in range(STAGGERED)))
        return STAGGERED * tokens / (max(ended) - started)


class Theirs:
    """`generate` on a model of its own."""

    def __init__(self, path: Path, ids: list[int]) -> None:
        from services.engine.runner import load_model

        self.model, self.ids = load_model(path, 1), ids

    def batch(self, size: int, tokens: int) -> float:
        """Tokens per second of one call."""
        import torch

        ids = torch.tensor([self.ids] * size)
        started = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, min_new_tokens=tokens, max_new_tokens=tokens, pad_token_id=0
            )  # fmt: skip
        made = size * (out.shape[1] - ids.shape[1])
        return float(made / (time.perf_counter() - started))

    def staggered(self, gap_s: float, tokens: int) -> float:
        """One call after another; each begins when its request has come."""
        started = time.perf_counter()
        for number in range(STAGGERED):
            time.sleep(max(started + number * gap_s - time.perf_counter(), 0))
            self.batch(1, tokens)
        return STAGGERED * tokens / (time.perf_counter() - started)


async def run(options: argparse.Namespace) -> Table:
    """Measure in turns."""
    from reefstack.models import default_cache_dir, prepare

    model, tokens, rounds = (
        (options.model, options.tokens, options.rounds) if not options.quick else ("tiny", 8, 1)
    )
    path = prepare(model, default_cache_dir())
    ours = await asyncio.to_thread(Ours, path, asyncio.get_running_loop())
    theirs = await asyncio.to_thread(Theirs, path, ours.ids)
    try:
        await ours.batch(1, 8)
        single = await asyncio.to_thread(theirs.batch, 1, 8)
        gap_s = 6 / single
        found: dict[str, list[harness.Row]] = {}
        for number in range(rounds):
            for size in options.batches:
                row = await pair(
                    f"batch {size}",
                    ours.batch(size, tokens),
                    asyncio.to_thread(theirs.batch, size, tokens),
                )
                found.setdefault(row["requests"], []).append(row)
            row = await pair(
                f"{STAGGERED} staggered",
                ours.staggered(gap_s, tokens),
                asyncio.to_thread(theirs.staggered, gap_s, tokens),
            )
            found.setdefault(row["requests"], []).append(row)
            tell(f"round {number + 1} of {rounds}: {told(found)}")
    finally:
        await asyncio.to_thread(ours.engine.loop.stop)
    rows = [harness.middle(each) for each in found.values()]
    return Table(
        NAME,
        f"tokens per second, {model}, {tokens} tokens a request, one thread",
        rows,
        [f"staggered: {gap_s:.2f} s apart"],
    )


def told(found: dict[str, list[harness.Row]]) -> str:
    """The last ratios."""
    return ", ".join(f"{rows[-1]['requests']} x{rows[-1]['ratio']:.2f}" for rows in found.values())


async def pair(what: str, ours: Any, theirs: Any) -> harness.Row:
    """One figure of each, one after the other."""
    mine, other = await ours, await theirs
    return {"requests": what, "engine_per_s": mine, "generate_per_s": other, "ratio": mine / other}


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
