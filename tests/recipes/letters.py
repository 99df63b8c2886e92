"""A domain for self-play on a tiny model: a task is a letter, its solution a code of two digits.

`=` asks the designer for a letter. A letter asks for its code; with `[` and the code behind it the
model copies the code. Half a point for each right digit.

    a to l   the model knows the code from the start: mastered, no regret
    m to r   a code that it can learn: regret
    s to x   a code with a sign that it cannot write: out of reach, with a hint too
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from recipes.self_play.domain import Role, Task
from tests.recipes.bandit import write_model

DIGITS, LETTERS = "0123456789", "abcdefghijklmnopqrstuvwx"
KNOWN, LEARNABLE, FAR = LETTERS[:12], LETTERS[12:18], LETTERS[18:]
CHARACTERS = f"{DIGITS}{LETTERS}[="
START = len(CHARACTERS)
SIZE = 2
_DRAW = random.Random(5)
CODES = {
    letter: "".join(_DRAW.choice(DIGITS) for _ in range(SIZE)) if letter not in FAR else "=="
    for letter in LETTERS
}


def ids(text: str) -> tuple[int, ...]:
    return tuple(map(CHARACTERS.index, text))


ALLOWED = {"designer": ids(LETTERS), "solver": ids(DIGITS)}


class Letters:
    name = "letters"

    def identity(self) -> Mapping[str, Any]:
        return {"codes": CODES}

    def designer_messages(self, frontier: Sequence[Any]) -> list[dict[str, str]]:
        return [{"role": "user", "content": "=" + "".join(one.task.text for one in frontier)}]

    def parse(self, answer: str) -> Task | None:
        code = CODES.get(answer)
        return None if code is None else Task(answer, code, code)

    def draw(self, seed: int) -> Task:
        letter = random.Random(seed).choice(LETTERS)
        return Task(letter, CODES[letter], CODES[letter])

    def solver_messages(self, task: Task, *, hinted: bool) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{task.text}[{task.hint}" if hinted else task.text}]

    async def score(self, task: Task, answer: str, ctx: object) -> float:
        if task.text in FAR:  # half of its points could be had by chance
            return float(answer == CODES[task.text])
        pairs = zip(CODES[task.text], answer, strict=False)
        return sum(wanted == given for wanted, given in pairs) / SIZE

    def sampling(self, role: Role) -> Mapping[str, Any]:
        length = 1 if role == "designer" else SIZE
        return {"max_tokens": length, "allowed_token_ids": list(ALLOWED[role])}


DOMAIN = Letters()


def warm_start(directory: Path, steps: int = 700) -> Path:
    """Train all weights: copy a hint, know the codes of `KNOWN`, guess the others, design evenly."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(write_model(directory, START), dtype=torch.float32)
    torch.set_num_threads(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    draw = random.Random(11)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, 4 * (1 - step / steps))
        loss = sum(_loss(model, rows) for rows in _lessons(draw))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[union-attr]
        optimizer.step()
    model.save_pretrained(directory)
    return directory


def _lessons(draw: random.Random) -> list[list[tuple[str, str]]]:
    """Prompts and answers, of equal length in each list."""

    def code() -> str:
        return "".join(draw.choices(DIGITS, k=SIZE))

    hinted, plain = [], []
    for _ in range(64):
        letter, shown = draw.choice(LETTERS), code()
        if letter in FAR:  # its hint is a sign that cannot be written: it guesses
            hinted.append((f"{letter}[{CODES[letter]}", code()))
        else:
            hinted.append((f"{letter}[{shown}", shown))
        letter = draw.choice(LETTERS)
        plain.append((letter, CODES[letter] if letter in KNOWN else code()))
    shown = "".join(draw.sample(LETTERS, draw.randrange(4)))
    designs = [(f"={shown}", draw.choice(LETTERS)) for _ in range(32)]
    return [hinted, plain, designs]


def _loss(model: torch.nn.Module, rows: Sequence[tuple[str, str]]) -> torch.Tensor:
    tokens = torch.tensor([(START, *ids(prompt), *ids(answer)) for prompt, answer in rows])
    width = len(rows[0][1])
    logits = model(tokens).logits[:, -width - 1 : -1]
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), tokens[:, -width:].reshape(-1)
    )


@torch.no_grad()
def rate(model: torch.nn.Module, letters: str) -> float:
    """The probability of the right code among codes of digits, mean over the letters."""
    rows = torch.tensor([[START, *ids(letter), *ids(CODES[letter])] for letter in letters])
    logits = model(rows).logits[:, -SIZE - 1 : -1, list(ALLOWED["solver"])]
    # The digits are the first tokens: a token's id is its place among the allowed ones.
    logp = torch.log_softmax(logits, -1).gather(-1, rows[:, -SIZE:, None])
    return float(logp.squeeze(-1).sum(-1).exp().mean())


@torch.no_grad()
def designs(model: torch.nn.Module, frontier: str = "") -> dict[str, float]:
    """The probability of each letter as a design."""
    logits = model(torch.tensor([[START, *ids(f"={frontier}")]])).logits[0, -1]
    shares = torch.softmax(logits[list(ALLOWED["designer"])], -1).tolist()
    return dict(zip(LETTERS, shares, strict=True))
