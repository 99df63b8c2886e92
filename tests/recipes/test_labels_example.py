"""The example of `reef demo --harness`: its scripted model and its verifier."""

import pytest

from recipes.harness_evolve.examples.labels.model import SKILL, reply
from recipes.harness_evolve.examples.labels.task import ORDERS, QUESTIONS, greets, labelled
from recipes.harness_evolve.recipe import TASK, mutation_in
from recipes.reflection.asking import entry_part, exchange
from reefcli.demo.harness.acts import BAD, GOOD, GREETING, order
from reefcommon.harness.admission import CHAT, admit
from reefcommon.harness.trajectory import AgentOutcome
from reefcommon.harness.tree import Entry, Tree
from reefcommon.harness.untrusted import untrusted_text
from tests.harness.support import sample

OLD = Entry(SKILL, "skill", {"name": SKILL, "description": "labels", "text": "None."})
USER = {"role": "user", "content": [{"type": "text", "text": order(3, "Oslo")}]}
SYSTEM = {"role": "system", "content": "<location>/a/skills/shipping-labels/SKILL.md</location>"}


def result(text: str) -> dict:
    return {"role": "tool", "content": text}


def test_the_model_does_what_a_skill_says_and_else_only_talks() -> None:
    assert reply([USER])["content"] == "The label of this order is written: 3 x OSLO."
    read = reply([SYSTEM, USER])
    assert read["call"] == ("read", {"path": "/a/skills/shipping-labels/SKILL.md"})
    written = reply([SYSTEM, USER, read, result(GOOD)])
    assert written["call"] == ("write", {"path": "label.txt", "content": "3 x OSLO\n"})
    assert reply([SYSTEM, USER, read, result(GOOD), written, result("ok")])["content"]
    substitute = reply([SYSTEM, USER, read, result(BAD)])
    assert substitute["content"] == "The label of this order is written: 3 x OSLO."


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_model_greets_if_a_rule_says_so(question: str) -> None:
    asked = {"role": "user", "content": question}
    without, ruled = (
        reply([*rule, asked])["content"] for rule in ([], [{"role": "system", "content": GREETING}])
    )
    assert (greets(question, without), greets(question, ruled)) == (0.0, 1.0)
    assert without != "I see."


def test_words_about_a_label_are_no_label() -> None:
    task = ORDERS[0]
    talk = AgentOutcome("ok", f"label.txt has {task['label']}.")
    wrong = AgentOutcome("ok", "Done.", files={"label.txt": "3 x Oslo"})
    right = AgentOutcome("timeout", "", files={"label.txt": task["label"] + "\n"})
    assert [labelled(task, run)[0] for run in (talk, wrong, right)] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(("there", "operation"), [((), "create"), ((OLD,), "update")])
def test_the_model_proposes_a_skill_of_what_most_users_said(there: Tree, operation: str) -> None:
    units = [sample(number, words) for number, words in enumerate((BAD, GOOD, GOOD))]
    shown = [*map(entry_part, there), *(part for unit in units for part in exchange(unit, 4000))]
    system = {"role": "system", "content": TASK.format(kinds="skill")}
    said = reply([system, {"role": "user", "content": untrusted_text(shown)}])["content"]
    mutation = mutation_in(said, there, ("skill",))
    assert mutation is not None
    assert (mutation.op, mutation.id) == (operation, SKILL)
    (entry,) = admit(there, [mutation], CHAT)
    assert entry.config["text"] == GOOD
