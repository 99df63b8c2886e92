"""The greeting example in one process: users, the scripted judge, signals, steps; no stack.

`python -m tests.recipes.greeting_loop MODEL OBJECTIVE SEED [key=value …]` prints the curve; with
`steps=0 wish=WORD` only how probable a word is at first, without and with the hint.
"""

import asyncio
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from recipes.openclaw_rl.examples.greeting import persona
from recipes.openclaw_rl.examples.greeting.judge_server import judged
from recipes.openclaw_rl.judge import with_hint
from recipes.openclaw_rl.recipe import OpenClawRLRecipe
from reefcommon.ids import LoadId
from reefcommon.recipe import WeightRecipe
from tests.recipes.turns import Context, Judge, turn


class Scripted(Judge):
    """The judge of the example without its HTTP server."""

    def __init__(self) -> None:
        super().__init__(lambda _purpose, _number: "")

    async def chat(self, messages: Any, *, purpose: str, n: int = 1, **params: Any) -> Any:
        self.say = lambda _purpose, _number: judged(list(messages))
        return await super().chat(messages, purpose=purpose, n=n, **params)


class Loop:
    """A model, its learner and its users."""

    def __init__(
        self, recipe: WeightRecipe, model_path: Path, *, tiny: bool, seed: int, max_tokens: int
    ) -> None:
        self.recipe, self.learner = recipe, recipe.learner(model_path)
        self.policy = self.learner.policy  # type: ignore[attr-defined]
        self.tokenizer = self.learner.tokenizer  # type: ignore[attr-defined]
        self.questions = persona.TINY if tiny else persona.SMOLLM2
        self.wish = persona.TINY_WISH if tiny else persona.WISH
        self.test = persona.TINY_TEST if tiny else persona.SMOLLM2_TEST
        self.draw, self.max_tokens = random.Random(seed), max_tokens
        self.generator = torch.Generator().manual_seed(seed)
        self.step, self.judge = 0, Scripted()
        self._turns = self._talk()

    @torch.no_grad()
    def answer(
        self, messages: Sequence[Any]
    ) -> tuple[tuple[int, ...], list[int], list[float], str]:
        prompt = self.tokenizer.prompt(messages)
        causal, said, logps = self.policy.causal, list[int](), list[float]()
        end = causal.config.eos_token_id
        while len(said) < self.max_tokens and end not in said:
            logits = causal(input_ids=torch.tensor([[*prompt, *said]])).logits[0, -1]
            logp = torch.log_softmax(logits, dim=-1)
            token = int(torch.multinomial(logp.exp(), 1, generator=self.generator))
            said.append(token)
            logps.append(min(float(logp[token]), 0.0))
        text = self.tokenizer._tokenizer.decode(said, skip_special_tokens=True)
        return prompt, said, logps, text

    def _talk(self) -> Iterator[Any]:
        """Turns with their next state, as the demonstration's users make them."""
        number = 0
        while True:
            messages: list[Any] = [{"role": "user", "content": self.draw.choice(self.questions)}]
            for _ in range(3):
                prompt, said, logps, text = self.answer(messages)
                words = persona.reply(text, self.wish, self.draw)
                answer = {"role": "assistant", "content": text}
                yield turn(
                    number,
                    load_id=f"run:{self.step}",
                    tokens=(*prompt, *said),
                    prompt_length=len(prompt),
                    loss_mask=(1,) * len(said),
                    logprobs=tuple(logps),
                    messages=(*messages, answer),
                    next_messages=({"role": "user", "content": words},),
                )
                number += 1
                if persona.greeted(text, self.wish):
                    break
                messages += [answer, {"role": "user", "content": words}]

    def train(self) -> dict[str, float]:
        """Take one step on the next batch of turns."""
        units: list[Any] = []
        while True:
            unit = next(self._turns)
            said = asyncio.run(self.recipe.signal(unit, Context(self.judge)))
            if said is None:
                continue
            units.append(unit.model_copy(update={"signal": said}))
            if batch := self.recipe.decide(units, LoadId("run", self.step)).batch:
                self.step += 1
                return dict(self.learner.step(batch).metrics)

    @torch.no_grad()
    def liked(self, hint: str = "") -> float:
        """The mean probability, over the held-out questions, of an answer that begins as liked."""
        wished = self.tokenizer.text(self.wish)
        total = 0.0
        for question in self.test:
            asked = [{"role": "user", "content": question}]
            prompt = self.tokenizer.prompt(with_hint(asked, hint) if hint else asked)
            logits = self.policy.causal(input_ids=torch.tensor([[*prompt, *wished]])).logits[0]
            logp = torch.log_softmax(logits, dim=-1)[len(prompt) - 1 : -1]
            total += float(logp.gather(-1, torch.tensor(wished)[:, None]).sum().exp())
        return total / len(self.test)


TINY_KNOBS = {
    "batch_size": 16,
    "max_staleness": 0,
    "policy_lr": 5e-3,
    "distillation": "forward_kl",
    "lora_alpha": 32,
    "judge_votes": 1,
    "target_modules": [
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head",
    ],
}  # fmt: skip


def main(model: str, objective: str, seed: str, *more: str) -> None:
    from reefstack.models import prepare

    torch.set_num_threads(1)
    tiny = model.startswith("tiny")
    knobs = {**(TINY_KNOBS if tiny else {"batch_size": 8, "policy_lr": 1e-3, "judge_votes": 1})}
    given = dict(pair.split("=", 1) for pair in more)
    steps, wish = int(given.pop("steps", 60)), given.pop("wish", "")
    knobs |= {"objective": objective, **{k: json.loads(v) for k, v in given.items()}}
    if not tiny:
        knobs["prompt_gradient"] = False
    recipe = OpenClawRLRecipe(OpenClawRLRecipe.knobs_type.model_validate(knobs))
    loop = Loop(recipe, prepare(model), tiny=tiny, seed=int(seed), max_tokens=6 if tiny else 3)
    loop.wish = wish or loop.wish
    hinted = loop.liked(f"Greet the user with {loop.wish} first.")
    print(f"step 0: {loop.liked():.2g}, with the hint {hinted:.2g}", flush=True)  # noqa: T201
    for step in range(1, steps + 1):
        metrics = loop.train()
        if step % 5 == 0:
            shown = {k.partition("/")[2]: round(v, 3) for k, v in metrics.items() if "/" in k}
            print(f"step {step}: {loop.liked():.4f} {shown}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
