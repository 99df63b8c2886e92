"""Seven tasks for the model `tiny-hint`: a guest is greeted with the word that he likes.

The designer names the guest, by one of the seven greetings that the model says. Three of the guests
like one greeting: it can be learned, and a hint names it. Two like any of the seven, so that there
is nothing to learn; two like a word that the model never says, not even with a hint.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipes.self_play.domain import Role, Task
from recipes.self_play.pool import Known
from reefcommon.recipe_context import Context, Messages

DESIGN = "I am the host."
SOLVE = "I am {guest}."
HINT = "\n\n[user's hint / instruction]\nGreet the user with {word} first."
LIKED = {"Ahoy": "Salut", "Ciao": "Dear", "Moin": "Yo"}
CONTENT = ("Salut", "Yo")
NEVER_SAID = "Zebra"
GUESTS = (*LIKED, *CONTENT, "Dear", "Tach")


@dataclass(frozen=True, slots=True)
class Greetings:
    max_tokens: int = 6

    @property
    def name(self) -> str:
        return "greetings"

    def identity(self) -> Mapping[str, Any]:
        return {"design": DESIGN, "solve": SOLVE, "hint": HINT, "liked": LIKED, "content": CONTENT}

    def designer_messages(self, _frontier: Sequence[Known]) -> Messages:
        return [{"role": "user", "content": DESIGN}]

    def parse(self, answer: str) -> Task | None:
        guest = answer.strip()
        if guest not in GUESTS:
            return None
        word = guest if guest in CONTENT else LIKED.get(guest, NEVER_SAID)
        return Task(guest, word, HINT.format(word=word))

    def draw(self, seed: int) -> Task:
        drawn = self.parse(random.Random(seed).choice(GUESTS))
        assert drawn is not None  # each guest is a task
        return drawn

    def solver_messages(self, task: Task, *, hinted: bool) -> Messages:
        text = SOLVE.format(guest=task.text)
        return [{"role": "user", "content": text + (task.hint if hinted else "")}]

    async def score(self, task: Task, answer: str, _ctx: Context) -> float:
        return self.worth(task, answer)

    def worth(self, task: Task, answer: str) -> float:
        accepted = GUESTS if task.text in CONTENT else (task.reference,)
        return float(answer.strip() in accepted)

    def sampling(self, _role: Role) -> Mapping[str, Any]:
        return {"max_tokens": self.max_tokens}


DOMAIN = Greetings()
