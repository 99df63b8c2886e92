"""One optimizer step of the trainer beside a plain torch + peft loop over the same batch, in one
process and one thread.

    python -m tests.bench.step [--model smollm2|tiny] [--batch 8] [--prompt 37] [--response 59] [--rounds 3]

`plain` is what one would write by hand: padded ids through a peft model, log-softmax, the clipped
ratio, backward, clip the norm, AdamW. `learner` is SAO's learner on the same samples (critic and
its two updates included), `worker` what a step process does for one request: that step, and state
and adapter on the disk, synced. The gradient goes through the prompt in all three. Rounds take
turns; the ratio is the figure.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.bench import harness
from tests.bench.harness import Table, tell
from tests.recipes.samples import sample

NAME = "step"
WHAT = "one optimizer step of the trainer beside a plain torch + peft loop"


def arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument(
        "--model",
        default="smollm2",
        help="smollm2 (135M parameters), tiny, or a Hugging Face directory",
    )
    parser.add_argument("--batch", type=int, default=8, help="rollouts a step")
    parser.add_argument("--prompt", type=int, default=37, help="tokens of a prompt")
    parser.add_argument("--response", type=int, default=59, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=3)


def rollouts(options: argparse.Namespace, vocabulary: int) -> list[Any]:
    """Samples with random ids, rewards and behaviour log-probabilities near those of an untrained
    ratio.
    """
    draws = random.Random(0)
    made = []
    for number in range(options.batch):
        ids = tuple(
            draws.randrange(3, vocabulary) for _ in range(options.prompt + options.response)
        )
        made.append(
            sample(
                number, tokens=ids, prompt_length=options.prompt, loss_mask=(1,) * options.response,
                logprobs=tuple(-10.0 - draws.random() for _ in range(options.response)), score=draws.random(),
            )
        )  # fmt: skip
    return made


class Plain:
    """The loop by hand."""

    def __init__(self, path: Path, knobs: Any) -> None:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        base.config.use_cache = False
        config = LoraConfig(
            r=knobs.lora_r,
            lora_alpha=knobs.lora_alpha,
            target_modules=list(knobs.target_modules),
            task_type="CAUSAL_LM",
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self.model: Any = get_peft_model(base, config)
        self.parameters = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=knobs.policy_lr, weight_decay=0.0)

    def step(self, batch: Sequence[Any]) -> None:
        """One step over the whole batch."""
        import torch

        ids = torch.tensor([one.tokens for one in batch])
        start = batch[0].prompt_length
        old = torch.tensor([one.logprobs for one in batch])
        advantage = torch.tensor([one.score for one in batch]).unsqueeze(1) - 0.5
        logits = self.model(ids).logits[:, start - 1 : -1]
        logp = torch.log_softmax(logits, dim=-1).gather(-1, ids[:, start:, None]).squeeze(-1)
        ratio = (logp - old).exp()
        loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def steps(options: argparse.Namespace, path: Path, home: Path) -> dict[str, Callable[[], object]]:
    """What is measured, each a function of no arguments."""
    import torch
    from transformers import AutoConfig

    from recipes.sao.knobs import Knobs
    from recipes.sao.recipe import SAORecipe
    from services.trainer.batches import batch_file
    from services.trainer.ports import StepRequest
    from services.trainer.worker import Worker

    torch.set_num_threads(1)
    knobs = Knobs(critic_warmup_steps=0, batch_size=options.batch)
    batch = rollouts(options, AutoConfig.from_pretrained(path).vocab_size)
    recipe = SAORecipe(knobs)
    plain, learner, worker = Plain(path, knobs), recipe.learner(path), Worker(recipe, path)
    state: list[Path | None] = [None]

    def request() -> None:
        out = home / f"job-{time.monotonic_ns()}"
        asked = {"job_id": "j", "state": state[0], "actor": None, "adopt": None, "out": out}
        with batch_file(home, batch) as written:
            worker.handle(StepRequest.model_validate({**asked, "batch": written}))
        state[0] = out

    return {
        "plain": lambda: plain.step(batch),
        "learner": lambda: learner.step(batch),
        "worker": request,
    }


async def run(options: argparse.Namespace) -> Table:
    """Measure in turns."""
    from reefstack.models import default_cache_dir, prepare

    model, rounds = ("tiny", 1) if options.quick else (options.model, options.rounds)
    with tempfile.TemporaryDirectory() as home:
        measured = await asyncio.to_thread(
            steps, options, prepare(model, default_cache_dir()), Path(home)
        )
        found: dict[str, list[harness.Row]] = {name: [] for name in measured}
        for number in range(rounds + 1):  # the first is warm-up
            for name, step in measured.items():
                started, cpu = time.perf_counter(), time.process_time()
                await asyncio.to_thread(step)
                spent = {
                    "step_s": time.perf_counter() - started,
                    "cpu_s": time.process_time() - cpu,
                }
                if number:
                    base = found["plain"][number - 1] if name != "plain" else spent
                    found[name].append(
                        {"step": name, **spent, "ratio": spent["step_s"] / base["step_s"]}
                    )
            tell(
                f"round {number} of {rounds}"
                + "".join(
                    f", {name} {rows[-1]['step_s']:.2f} s" for name, rows in found.items() if rows
                )
            )
    rows = [harness.middle(each) for each in found.values()]
    shape = f"{options.batch} rollouts of {options.prompt} + {options.response} tokens"
    return Table(
        NAME,
        f"seconds a step, {model}, LoRA of rank 8 on all projections, {shape}, one thread",
        rows,
    )


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
