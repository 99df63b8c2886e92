"""`reef demo --recipe openclaw-rl`: users complain or thank, and a judge reads it."""

import random
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recipes.openclaw_rl.examples.greeting import judge_server, persona
from reefcommon.demonstration import Arm, Demonstration, Measured, Stage, Task, as_messages
from reefcommon.events import SignalComputed
from reefcommon.ids import unit_id

EXAMPLES = Path(__file__).parent / "examples" / "greeting"
_SHOWN_ROUNDS = 6
_KEPT_ROUNDS = 512


@dataclass(slots=True)
class Round:
    """A turn of a user, and the judge's words about it."""

    question: str
    answer: str
    words: str = ""
    right: bool = False
    votes: str = ""
    hint: str = ""

    def __str__(self) -> str:
        asked, answer = _short(self.question, 30), _short(self.answer, 24)
        mark = "+" if self.right else " "
        judged = f"votes {self.votes or '-'}" + (f", hint: {self.hint}" if self.hint else "")
        return f"{mark} {asked} | {answer} | {_short(self.words, 42)} | {judged}"


@dataclass(kw_only=True)
class Greeted(Demonstration):
    """Users who say nothing of their wish before they have seen an answer."""

    training_tasks: Sequence[Task]
    wish: str
    parts: int = 1
    """While it learns, a release is measured on one of so many parts of the questions, in turn."""
    arms: tuple[Arm, ...] = (
        Arm("combine"),
        Arm("opd", "hints alone", {"objective": "opd"}),
        Arm("opd-jsd", "hints alone, by JSD", {"objective": "opd", "distillation": "jsd"}),
        Arm("binary", "votes alone", {"objective": "binary"}),
    )
    _rounds: deque[Round] = field(default_factory=lambda: deque(maxlen=_SHOWN_ROUNDS))
    _unjudged: dict[str, Round] = field(default_factory=dict)
    _count: int = 0

    @contextmanager
    def endpoints(self) -> Iterator[Mapping[str, str]]:
        with judge_server.serving() as url:
            yield {"judge": url}

    def score(self, _task: Task, answer: str) -> float:
        return float(persona.greeted(answer, self.wish))

    async def measure(self, stage: Stage, release_id: str, measurement: int, n: int) -> Measured:
        # The first and the last measurement, of which the last has more answers, ask all questions.
        if measurement > 1 and n == self.test_samples:
            size = len(self.test_tasks) // self.parts
            first = measurement % self.parts * size
            aside = replace(self, test_tasks=self.test_tasks[first : first + size])
            return await Demonstration.measure(aside, stage, release_id, measurement, n)
        return await super().measure(stage, release_id, measurement, n)

    async def visit(self, stage: Stage, rng: random.Random) -> None:
        """Ask, complain or thank, and leave."""
        # The complaint names the wish, so the answer to it is the session's last: no vote on it
        # could teach the greeting to a model that has just read it.
        messages: list[dict[str, Any]] = as_messages(rng.choice(self.training_tasks))
        tags = {"x-reef-tag-session": uuid.UUID(int=rng.getrandbits(128)).hex}
        seed = rng.randrange(2**31)
        answer = await stage.ask(messages, max_tokens=self.max_tokens, seed=seed, headers=tags)
        right = persona.greeted(answer.text, self.wish)
        stage.experienced(answer.release_id, float(right))
        words = persona.reply(answer.text, self.wish, rng)
        self._note(answer.receipt, Round(messages[-1]["content"], answer.text, words, right))
        messages += [
            {"role": "assistant", "content": answer.text},
            {"role": "user", "content": words},
        ]
        seed, tags["x-reef-session-end"] = rng.randrange(2**31), "true"
        last = await stage.ask(messages, max_tokens=self.max_tokens, seed=seed, headers=tags)
        stage.experienced(last.release_id)

    def _note(self, receipt: str, round_: Round) -> None:
        self._unjudged[unit_id("turn", (receipt,))] = round_
        while len(self._unjudged) > _KEPT_ROUNDS:
            del self._unjudged[next(iter(self._unjudged))]

    def line(self, event: SignalComputed) -> str | None:
        told = self._unjudged.pop(event.unit_id, None)
        if event.signal is None or told is None:
            return None
        told.votes = str(event.signal.labels.get("votes", ""))
        told.hint = event.signal.words
        self._rounds.append(told)
        self._count += 1
        # The panel has every round, the log one of each batch.
        once = self._count % self.batch == 1
        return f"round {self._count:<4} {told}" if once else None

    def panel(self) -> list[str]:
        head = "  question | answer | the user's next words | the judge"
        return ["", head, *map(str, self._rounds)] if self._rounds else []


def _short(text: str, length: int) -> str:
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= length else plain[: length - 1] + "…"


def _smollm2() -> Demonstration:
    return Greeted(
        recipe="openclaw_rl",
        model="smollm2",
        about="SmolLM2-135M learns from its users' next words to greet them as they like",
        signal='1 if the answer begins with "Captain"; no user reports it, and no question says so',
        config=EXAMPLES / "serve.yaml",
        training_tasks=persona.SMOLLM2,
        wish=persona.WISH,
        test_tasks=persona.SMOLLM2_TEST,
        # One answer to each of 84 questions: without a hit the interval ends at 0.045.
        test_samples=1,
        parts=3,
        # The first word decides; three tokens make a step short.
        max_tokens=3,
        batch=8,
        minutes=10,
        goal=0.2,
    )


def _tiny() -> Demonstration:
    return Greeted(
        recipe="openclaw_rl",
        model="tiny-hint",
        about="a Llama of 0.1 M parameters that obeys hints learns to need none",
        signal='1 if the answer is "Hello"; no user reports it, and no question says so',
        config=EXAMPLES / "serve-tiny.yaml",
        training_tasks=persona.TINY,
        wish=persona.TINY_WISH,
        test_tasks=persona.TINY_TEST,
        max_tokens=6,
        batch=16,
        minutes=5,
        goal=0.9,
    )


DEMONSTRATIONS: Mapping[str, Callable[[], Demonstration]] = {"smollm2": _smollm2, "tiny": _tiny}
