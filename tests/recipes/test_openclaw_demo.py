"""The greeting demonstration: its users, its judge over HTTP, and what a terminal shows."""

import asyncio
import json
import random
from types import SimpleNamespace
from urllib.request import Request, urlopen

import pytest

from recipes.openclaw_rl import judge
from recipes.openclaw_rl.demo import DEMONSTRATIONS
from recipes.openclaw_rl.examples.greeting import judge_server, persona
from reefcommon.demonstration import Answer
from reefcommon.events import Signal, SignalComputed
from reefcommon.ids import unit_id
from reefcommon.statistics import mean_interval
from tests.recipes.samples import AT


class Stage:
    """Gives the answers of a list, and keeps the requests."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.asked, self.felt = iter(texts), [], []

    async def ask(self, task, *, max_tokens, seed, headers=None):
        self.asked.append(([dict(message) for message in task], dict(headers or {}), seed))
        return Answer(next(self.texts), f"rec-{len(self.asked)}", "r1-a")

    def experienced(self, release_id, reward=None):
        self.felt.append(reward)


async def visited(*texts: str):
    stage, shown = Stage(*texts), DEMONSTRATIONS["tiny"]()
    await shown.visit(stage, random.Random(0))
    return stage, shown


async def test_a_user_thanks_at_once_if_he_is_greeted_as_he_likes():
    stage, _ = await visited("Hello", "Ahoy")
    first, last = (messages for messages, *_ in stage.asked)
    assert [m["role"] for m in last] == ["user", "assistant", "user"]
    assert last[-1]["content"] in persona.THANKS
    assert first[0]["content"] in persona.TINY
    assert stage.felt == [1.0, None]


async def test_a_user_complains_in_the_last_words_of_a_session():
    stage, _ = await visited("Ahoy", "Hello")
    said = [messages[-1]["content"] for messages, *_ in stage.asked]
    headers = [headers for _, headers, _ in stage.asked]
    assert said[1] in [words.format("Hello") for words in persona.COMPLAINTS]
    assert stage.felt == [0.0, None], "the later answer has read a complaint"
    assert len({h["x-reef-tag-session"] for h in headers}) == 1
    # No state follows the answer to a complaint: it never gets a vote.
    assert [h.get("x-reef-session-end") for h in headers] == [None, "true"]
    assert len({seed for *_, seed in stage.asked}) == 2
    other, _ = await visited("Hello", "Yo")
    assert other.asked[0][1] == headers[0], "the seed of the user alone decides"


@pytest.mark.parametrize(("model", "held_out"), [("smollm2", 84), ("tiny", 24)])
def test_the_wish_is_in_no_question(model, held_out):
    shown = DEMONSTRATIONS[model]()
    asked, test = ({*tasks} for tasks in (shown.training_tasks, shown.test_tasks))
    assert not any(shown.wish.lower() in question.lower() for question in asked | test)
    assert len(test) == len(shown.test_tasks) == held_out
    assert not asked & test
    assert not {*persona.THINGS} & {*persona.TEST_THINGS}


def test_a_share_without_a_hit_is_below_a_twentieth():
    shown = DEMONSTRATIONS["smollm2"]()
    assert mean_interval([0.0] * len(shown.test_tasks))[2] < 0.05


async def test_a_measurement_asks_sixteen_questions_at_a_time():
    shown, asked, together = DEMONSTRATIONS["smollm2"](), set[str](), []

    async def sampled(_release, task, *, n, **_draw):
        asked.add(task)
        together.append(len(asked))
        await asyncio.sleep(0.001)
        asked.discard(task)
        return ["Captain"] * n

    found = await shown.measure(SimpleNamespace(seed=0, sampled=sampled), "r1-a", 1, 1)
    assert (found.mean, found.answers) == (1.0, 84)
    assert max(together) == 16


async def test_all_questions_are_asked_first_and_last_and_a_third_between():
    shown, asked = DEMONSTRATIONS["smollm2"](), []

    async def sampled(_release, task, *, n, **_draw):
        asked.append(task)
        return ["Captain"] * n

    stage, seen = SimpleNamespace(seed=0, sampled=sampled), []
    for measurement, n in ((1, 1), (2, 1), (3, 1), (4, 1), (5, 2)):
        asked.clear()
        await shown.measure(stage, "r1-a", measurement, n)
        seen.append({*asked})
    first, *between, last = seen
    assert first == last == {*shown.test_tasks} == set.union(*between)
    assert [len(questions) for questions in between] == [28, 28, 28]


@pytest.mark.parametrize(
    ("answer", "right"),
    [("Hello", True), (" Hello, Ada", True), ('"Hello"', True), ("Helloo", False), ("Ahoy", False)],
)
def test_the_first_word_decides(answer, right):
    assert persona.greeted(answer, "Hello") == right


async def test_a_signal_is_shown_beside_its_round():
    _, shown = await visited("Ahoy", "Hello", "Yo")
    assert shown.panel() == []
    said = Signal(score=-1.0, words="Greet the user so.", labels={"votes": "-1 -1 +1"})
    event = SignalComputed(
        event_id="sig-1",
        at=AT,
        scenario="default",
        recipe="openclaw_rl",
        unit_id=unit_id("turn", ("rec-1",)),
        signal=said,
    )
    line = shown.line(event)
    assert line.startswith("round 1 ")
    for words in ("Ahoy", "votes -1 -1 +1", "hint: Greet the user so."):
        assert words in line
        assert words in shown.panel()[-1]
    assert shown.line(event) is None, "a repeat"
    assert shown.line(event.model_copy(update={"unit_id": "unt-other"})) is None
    refused = event.model_copy(update={"unit_id": unit_id("turn", ("rec-2",)), "signal": None})
    assert shown.line(refused) is None


def test_the_scripted_judge_answers_over_http():
    asked = judge.directive(
        [{"role": "user", "content": "I am Ada."}],
        {"role": "assistant", "content": "Ahoy"},
        [{"role": "user", "content": "Please greet me with Hello first."}],
    )
    with judge_server.serving() as url:
        body = json.dumps({"model": "scripted", "messages": asked, "n": 2}).encode()
        with urlopen(Request(f"{url}/chat/completions", data=body)) as response:
            answer = json.load(response)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    assert [judge.hint_in(text) for text in texts] == ["Greet the user with Hello first."] * 2
    assert answer["usage"]["total_tokens"] > 0


def test_words_of_a_model_do_no_harm_to_the_terminal():
    from recipes.openclaw_rl.demo import Round

    shown = str(Round("I am Ada.", "A\x1b[2J\nhoy" * 20, "words", right=False))
    assert "\x1b" not in shown
    assert "\n" not in shown
    assert len(shown) < 140
