"""The demonstrations of the harness recipes: users, held-out questions, and the scripted models."""

import random
from dataclasses import dataclass, field

import httpx
import pytest

from recipes.gepa.demo import DEMONSTRATIONS as GEPA
from recipes.reflection.examples import house, models
from recipes.reflection.examples.server import serving
from recipes.skill_evolution.demo import DEMONSTRATIONS as SKILLS
from reefcli.demo.variant import variant
from reefcommon import config
from reefcommon.demonstration import Answer, Arm


@dataclass
class Stage:
    """A stage whose served model knows no style. `asked` and `reports` are what users did."""

    arm: Arm
    asked: list = field(default_factory=list)
    reports: list = field(default_factory=list)
    felt: list = field(default_factory=list)

    async def ask(self, task, *, max_tokens, seed, headers=None):
        self.asked.append((task, headers))
        return Answer(models.house_model(task), f"rec-{len(self.asked)}", "r0")

    async def report(self, receipt, score, metadata=None, feedback=None):
        self.reports.append((receipt, score, metadata, feedback))

    def experienced(self, release_id, reward=None):
        self.felt.append(reward)


async def visited(demonstrations, arm):
    (build,) = demonstrations.values()
    stage = Stage(arm)
    await build().visit(stage, random.Random(0))
    return stage


async def test_users_report_words_unless_they_are_silent():
    told = await visited(GEPA, Arm("gepa"))
    ((receipt, score, metadata, words),) = told.reports
    assert (receipt, score, told.felt) == ("rec-1", 0.0, [0.0])
    assert words == house.WORDS[metadata["kind"]]
    silent = await visited(GEPA, Arm("silent"))
    assert silent.reports[0][3] is None


async def test_a_session_ends_with_the_users_words():
    stage = await visited(SKILLS, Arm("skill_evolution"))
    assert stage.reports == []
    (first, started), (last, ended) = stage.asked
    assert last[0] == first[0]
    assert last[-1]["content"] in house.WORDS.values()
    assert ended == {**started, "x-reef-session-end": "true"}


def test_measured_questions_are_nobodys_and_their_answers_are_scored():
    (build,) = GEPA.values()
    shown = build()
    asked = {task["prompt"] for task in (*house.TRAIN, *house.VALIDATION, *house.HELD_OUT)}
    assert asked.isdisjoint(shown.test_tasks)
    question = "A pen costs 31 euros and 50 cents. State its price."
    assert (shown.score(question, "3150"), shown.score(question, "31.50")) == (1.0, 0.0)


def test_the_scripted_model_is_an_endpoint_and_the_engine_of_the_stack():
    (build,) = GEPA.values()
    shown = build()
    with shown.engine() as url:
        told = variant(config.load(shown.config), Arm("gepa"), {"proposer": url}, {}, url)
        assert told.serving.engines == (url,)
        body = {"model": "reef", "n": 2, "messages": [{"role": "user", "content": "Hi."}]}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body).json()
        assert [choice["message"]["content"] for choice in answer["choices"]] == [
            "I cannot say."
        ] * 2
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["id"] == "reef"


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("You keep the playbook of", '{"add": []}'),
        ("You look after the harness", "Nothing to add."),
    ],
)
def test_the_scripted_proposer_answers_each_recipes_question(question, answer):
    messages = [{"role": "system", "content": question}, {"role": "user", "content": "-"}]
    with serving(models.either) as url:
        found = httpx.post(f"{url}/v1/chat/completions", json={"messages": messages}).json()
    assert found["choices"][0]["message"]["content"] == answer
