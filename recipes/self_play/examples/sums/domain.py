"""Sums, differences and products: the designer chooses the numbers and gives the solution."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipes.self_play.domain import Role, Task
from recipes.self_play.pool import Known
from reefcommon.recipe_context import Context, Messages

DESIGN = (
    "Set a problem in mental arithmetic that a student can just about solve. Use two whole numbers "
    "of at most {digits} digits and one of + - *. Write the problem with its solution on the last "
    "line, as in: 12 + 34 = 46"
)
SOLVE = "{task} = ?\nEnd with the number alone on the last line."
HINTED = SOLVE + "\nHint: {hint}"
_PROBLEM = re.compile(r"(\d+)\s*([+*-])\s*(\d+)\s*=\s*(-?\d+)")
_NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True, slots=True)
class Sums:
    digits: int = 4
    max_tokens: int = 512

    @property
    def name(self) -> str:
        return "sums"

    def identity(self) -> Mapping[str, Any]:
        return {"design": DESIGN, "solve": SOLVE, "hinted": HINTED, "digits": self.digits}

    def designer_messages(self, frontier: Sequence[Known]) -> Messages:
        text = DESIGN.format(digits=self.digits)
        if frontier:
            rows = "\n".join(f"{one.task.text} (gap {one.regret:.2f})" for one in frontier)
            text += (
                "\n\nThe student found these hard, and easier with a hint. The greater the gap, "
                f"the better the problem:\n{rows}\n\nSet another problem of this kind."
            )
        return [{"role": "user", "content": text}]

    def parse(self, answer: str) -> Task | None:
        match = _PROBLEM.fullmatch(_last_line(answer))
        if match is None:
            return None
        first, sign, second, result = match.groups()
        if max(len(first), len(second)) > self.digits:
            return None
        return _task(int(first), sign, int(second), result)

    def draw(self, seed: int) -> Task:
        draw = random.Random(seed)
        first, second = (draw.randrange(10**self.digits) for _ in range(2))
        sign = draw.choice("+-*")
        return _task(first, sign, second, str(_value(first, sign, second)))

    def solver_messages(self, task: Task, *, hinted: bool) -> Messages:
        text = (HINTED if hinted else SOLVE).format(task=task.text, hint=task.hint)
        return [{"role": "user", "content": text}]

    async def score(self, task: Task, answer: str, ctx: Context) -> float:
        line = _last_line(answer)
        first, sign, second = task.text.split()
        right = _NUMBER.fullmatch(line) and int(line) == _value(int(first), sign, int(second))
        return 1.0 if right else 0.0

    def sampling(self, role: Role) -> Mapping[str, Any]:
        return {"max_tokens": self.max_tokens}


def _task(first: int, sign: str, second: int, result: str) -> Task:
    ones = _value(first % 10, sign, second % 10) % 10
    hint = f"the last digit is {ones if sign != '-' or first >= second else (10 - ones) % 10}."
    return Task(f"{first} {sign} {second}", result, hint)


def _value(first: int, sign: str, second: int) -> int:
    return {"+": first + second, "-": first - second, "*": first * second}[sign]


def _last_line(answer: str) -> str:
    lines = answer.strip().splitlines()
    return lines[-1].strip() if lines else ""


DOMAIN = Sums()
