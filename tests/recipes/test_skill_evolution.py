"""Skill evolution: sessions of a night, groups by skill, counts, one composite proposal."""

import json
import re
from datetime import UTC, datetime, time, timedelta

import pytest

from recipes.reflection.examples import house
from recipes.reflection.examples.models import library
from recipes.skill_evolution.recipe import (
    SkillEvolutionKnobs,
    SkillEvolutionRecipe,
    composed,
    named,
    weighed,
)
from recipes.skill_evolution.sessions import night_before, referenced, window
from reefcommon.events import SessionEnded
from reefcommon.harness.admission import CHAT, admit
from reefcommon.harness.tree import Entry
from tests.harness.support import AT
from tests.recipes.harness_world import HarnessWorld

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def session(number, at=AT, said="done", score=None, **message):
    answer = {"role": "assistant", "content": said, **message}
    return SessionEnded(
        event_id=f"s{number}", at=at, scenario="default", record_ids=(f"r{number}",), recorded_at=at, score=score,
        messages=({"role": "user", "content": "skill sums: use it"}, answer),
    )  # fmt: skip


def skill(name, text="Text.") -> Entry:
    return Entry(f"skill-{name}", "skill", {"name": name, "description": "d", "text": text})


# ------------------------------------------------------------------ windows


def test_a_night_takes_all_sessions_of_the_day_before():
    night = time(3)
    assert night_before(NOON, night) == NOON.replace(hour=3)
    assert night_before(NOON.replace(hour=2), night) == NOON.replace(day=3, hour=3)
    hours = (20, 23, 26, 28)  # of 3 May: the last two are 2 and 4 o'clock of 4 May
    day = [
        session(n, datetime(2026, 5, 3, tzinfo=UTC) + timedelta(hours=h))
        for n, h in enumerate(hours)
    ]
    assert window(day[:3], night, 16, 99) == (), "no session has ended after the night yet"
    assert [unit.event_id for unit in window(day, night, 16, 99)] == ["s0", "s1", "s2"]
    assert [unit.event_id for unit in window(day, night, 16, 2)] == ["s0", "s1"]
    assert window([], night, 16, 99) == ()


def test_without_a_night_a_number_of_sessions_is_a_window():
    waiting = [session(n) for n in range(5)]
    assert len(window(waiting, None, 4, 99)) == 4
    assert window(waiting[:3], None, 4, 99) == ()


@pytest.mark.parametrize("wrong", ["3:00", "24:00", "03:60", "night"])
def test_a_time_of_day_is_checked(wrong):
    with pytest.raises(ValueError, match="nightly"):
        SkillEvolutionKnobs(nightly=wrong)


# ------------------------------------------------------------------ pure parts


def test_only_the_words_and_calls_of_the_assistant_refer_to_a_skill():
    call = {"function": {"name": "read", "arguments": '{"path": "skills/sums/SKILL.md"}'}}
    names = ["sums", "sum", "tables"]
    assert referenced(session(1), names) == ()
    assert referenced(session(1, said="By sums, 4."), names) == ("sums",)
    assert referenced(session(1, tool_calls=[call]), names) == ("sums",)


def test_the_judge_is_weighed_and_an_unreadable_one_gives_none():
    good = {"task_completion": 1, "response_quality": 0.5, "tool_usage": 1.0, "efficiency": 0}
    assert weighed(json.dumps(good)) == pytest.approx(0.8)
    for wrong in (
        "",
        json.dumps({**good, "more": 1}),
        json.dumps({**good, "efficiency": 2}),
        '{"a": 1}',
    ):
        assert weighed(wrong) is None
    assert weighed(json.dumps({**good, "efficiency": True})) is None


def test_decisions_become_one_proposal_and_clashes_are_left_out():
    skills = {"sums": skill("sums"), "tables": skill("tables")}
    new = {"action": "create", "name": "Dates & times", "description": "Of dates.", "text": "How."}
    decisions = [
        ("sums", {"action": "improve", "text": "Better."}),
        ("tables", {"action": "describe", "description": "Of tables."}),
        ("", new),
        ("gone", {"action": "improve", "text": "x"}),
        ("sums", {"action": "skip"}),
        ("", None),
        ("", {**new, "text": "Other."}),
        ("", {**new, "name": "SUMS"}),
        ("", {**new, "name": "&"}),
    ]
    found = composed(decisions, skills, 50)
    assert [(each.op, each.id, each.reason) for each in found] == [
        ("update", "skill-sums", "improve the skill sums"),
        ("update", "skill-tables", "describe the skill tables"),
        ("create", "skill-Dates-times", "create the skill Dates-times"),
    ]
    tree = admit(tuple(skills.values()), found, CHAT)
    assert [entry.config["text"] for entry in tree] == ["Better.", "Text.", "How."]
    assert composed(decisions, skills, 2) == found[:2]
    assert named("..a b..") == "a-b"


# ------------------------------------------------------------------ on the host


async def test_sessions_become_skills_and_count_who_used_them(tmp_path):
    recipe = SkillEvolutionRecipe(SkillEvolutionKnobs(batch_size=3))
    world = HarnessWorld(tmp_path, recipe, library)
    prices = [task for task in house.TRAIN if task["kind"] == "price"]
    for task in prices[:3]:
        world.session(task)
    await world.run()
    assert [entry.config["name"] for entry in world.tree] == ["state-price"]
    assert world.mean() == pytest.approx(1 / 3)
    assert world.state("counts") == {}
    used = ({"role": "assistant", "content": "I used state-price."},)
    for task, score in zip(prices, (1.0, 0.0, 1.0), strict=False):
        world.session(task, score=score, more=used)
    await world.run()
    assert world.state("counts") == {"state-price": {"helpful": 2, "harmful": 1}}
    judged = [
        call["purpose"] for call in world.store.logged_calls(world.loop.binding.key, 99)
    ].count("judge")
    assert judged == 3, "scored sessions are not judged"
    world.close()


async def test_the_counts_are_shown_to_the_decision(tmp_path):
    asked = []

    def noting(messages, seed):
        asked.append(messages[0]["content"])
        return library(messages, seed)

    world = HarnessWorld(tmp_path, SkillEvolutionRecipe(SkillEvolutionKnobs(batch_size=1)), noting)
    world.session(house.TRAIN[0])
    await world.run()
    used = ({"role": "assistant", "content": "I used state-price."},)
    world.session(house.TRAIN[0], score=0.0, more=used)
    await world.run()
    assert any(re.search(r"helped 0 times and harmed 1", text) for text in asked)
    world.close()
