"""Demonstrations whose users report: what they ask, what they report, and how answers are judged."""

import random
from types import SimpleNamespace

import pytest

from recipes.distillation import greeting
from recipes.distillation.messages import with_demonstration
from recipes.opd.examples.greeting import teacher
from recipes.policy_gradient.users import PERMUTED
from recipes.sdft.demo import OLD
from reefcli.demo.variant import demonstrations
from reefcommon.config import load
from reefcommon.demonstration import Answer, as_messages


class Stage:
    """Gives one answer again and again, and keeps requests and reports."""

    def __init__(self, text: str, arm: str = "method") -> None:
        self.text, self.arm = text, SimpleNamespace(name=arm)
        self.asked, self.reports, self.felt = [], [], []

    async def ask(self, task, *, max_tokens, seed):
        self.asked.append((task, max_tokens, seed))
        return Answer(self.text, f"rec-{len(self.asked)}", "r1-a")

    async def report(self, receipt, score, metadata=None):
        self.reports.append((receipt, score, metadata))

    def experienced(self, release_id, reward=None):
        self.felt.append((release_id, reward))


def tiny(recipe: str):
    return demonstrations(recipe)["tiny"]()


async def test_attempts_at_a_question_have_seeds_of_their_own():
    stage, shown = Stage("Salut"), tiny("sdpo")
    await shown.visit(stage, random.Random(0))
    assert len(stage.asked) == load(shown.config).reef[0].knobs["group_size"] == 8
    assert len({task for task, *_ in stage.asked}) == 1
    assert len({seed for *_, seed in stage.asked}) == 8
    assert sorted(stage.reports) == [(f"rec-{n}", 1.0, None) for n in range(1, 9)]
    assert stage.felt == [("r1-a", 1.0)] * 8


async def test_permuted_attempts_are_reported_once_the_pool_is_full():
    stage, shown = Stage("Salut", PERMUTED.name), tiny("grpo")
    for _ in range(10):
        await shown.visit(stage, random.Random(0))
    assert len(stage.reports) == len(stage.felt) == 80 - shown.batch


async def test_a_demonstration_goes_with_the_report():
    stage, shown = Stage("Yo"), tiny("sdft")
    await shown.visit(stage, random.Random(0))
    assert stage.reports == [("rec-1", 0.0, {"demonstration": "Hello"})]


@pytest.mark.parametrize(
    ("recipe", "right", "wrong"),
    [("opd", "Hello", "Hell"), ("sdpo", " Salut\n", "Yo"), ("sft", "Salut", "Salut Yo")],
)
def test_an_answer_is_the_liked_word_alone(recipe, right, wrong):
    shown = tiny(recipe)
    assert [shown.score(shown.test_tasks[0], text) for text in (right, wrong, "")] == [1, 0, 0]


async def test_an_old_skill_is_measured_beside_the_new():
    shown, seeds, said = tiny("sdft"), [], []

    async def sampled(_release, task, *, max_tokens, n, seed):
        seeds.append(seed)
        return ["Salut" if len(task) == 3 else "Hello"] * n

    stage = SimpleNamespace(seed=0, sampled=sampled, say=said.append)
    found = await shown.measure(stage, "r1-a", 1, 2)
    assert (found.mean, found.answers) == (1.0, 2 * len(shown.test_tasks)), "the new skill alone"
    assert said[0].startswith("the old skill: 0.333 [")
    assert len({*seeds}) == len(shown.test_tasks) + len(OLD)


def test_the_old_skill_is_to_heed_a_wish():
    shown = tiny("sdft")
    assert not {*shown.test_tasks} & {*shown.training_tasks}
    assert "Salut" in as_messages(OLD[1])[-1]["content"]
    assert [shown.score(OLD[1], text) for text in ("Salut", "Hello", "Dear", "")] == [1, 0, 0, 0]


def test_the_liked_words_are_in_no_question():
    asked = (*greeting.TRAIN, *greeting.TEST)
    assert not any(word in one for one in asked for word in (greeting.RARE, greeting.COMMON))


@pytest.mark.parametrize("recipe", ["sdft", "sdpo"])
def test_the_teacher_reads_a_hint_of_the_form_that_the_model_knows(recipe):
    (binding,) = load(tiny(recipe).config).reef
    read = with_demonstration(as_messages("I am Ada."), "Salut", binding.knobs["template"])
    words = "I am Ada.\n\n[user's hint / instruction]\nGreet the user with Salut first."
    assert read[-1]["content"] == words


def test_the_teacher_of_opd_is_taught_the_word_and_its_end():
    tokens = SimpleNamespace(
        prompt=lambda _said: (7, 8, 9), answer=lambda text: (*map(ord, text), 0)
    )
    lesson = teacher.lesson(tokens, "I am Ada.")
    assert lesson.tokens[lesson.prompt_length :] == (*map(ord, "Hello"), 0)
    assert len(lesson.loss_mask) == len(lesson.logprobs) == 6
