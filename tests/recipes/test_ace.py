"""ACE: bullets come by small changes, count their help and harm, and stay within the size."""

import json

import pytest

from recipes.ace.playbook import Count, bullet_id, bullets, delta, marked
from recipes.ace.recipe import AceKnobs, AceRecipe
from recipes.reflection.examples import house
from recipes.reflection.examples.models import reviewer
from reefcommon.harness.admission import CHAT, admit
from reefcommon.harness.tree import Entry
from tests.recipes.harness_world import HarnessWorld

OURS = Entry("ours", "rules", {"text": "Ours."})


def bullet(text) -> Entry:
    return Entry(bullet_id(text), "rules", {"text": text})


def test_counts_are_of_known_bullets_and_each_once_an_exchange():
    known = bullets((OURS, bullet("A"), bullet("B")))
    first, second = known
    told = {"helpful": [first, first, "ace-none", 3], "harmful": [second]}
    counts = marked(marked({}, known, told), known, {"helpful": [first], "harmful": "all"})
    assert counts == {first: Count(2, 0), second: Count(0, 1)}


def test_a_harmful_bullet_goes_and_others_stay_as_they_are():
    tree = (OURS, bullet("A"), bullet("B"))
    counts = {bullet_id("A"): Count(1, 3), bullet_id("B"): Count(0, 1)}
    found = delta(bullets(tree), counts, ["C"], limit=2, most=9)
    assert [(each.op, each.id) for each in found] == [
        ("remove", bullet_id("A")),
        ("create", bullet_id("C")),
    ]
    assert [entry.config["text"] for entry in admit(tree, found, CHAT)] == ["Ours.", "B", "C"]


def test_the_least_useful_makes_room_and_of_equals_the_oldest():
    tree = (bullet("A"), bullet("B"), bullet("C"))
    counts = {bullet_id("A"): Count(2, 0), bullet_id("C"): Count(0, 1)}
    room = delta(bullets(tree), counts, ["D", "E"], limit=5, most=3)
    assert [each.id for each in room if each.op == "remove"] == [bullet_id("C"), bullet_id("B")]
    assert len(bullets(admit(tree, room, CHAT))) == 3
    full = delta({}, {}, list("ABCDE"), limit=2, most=3)
    assert len(full) == 3


def test_the_same_words_are_the_same_bullet():
    tree = (bullet("State prices in cents."),)
    assert delta(bullets(tree), {}, ["  state PRICES in cents"], limit=2, most=9) == ()


async def test_the_playbook_learns_the_style_and_counts(tmp_path):
    world = HarnessWorld(tmp_path, AceRecipe(AceKnobs(batch_size=3)), reviewer)
    for task in house.TRAIN[:3]:
        world.report(task)
    await world.run()
    assert {entry.config["text"] for entry in world.tree} == set(house.WORDS.values())
    assert world.mean() == 1.0
    for task in house.TRAIN[3:6]:
        world.report(task)
    await world.run()
    assert set(world.state("counts").values().__iter__().__next__()) == {"helpful", "harmful"}
    assert [count["helpful"] for count in world.state("counts").values()] == [3, 3, 3]
    assert len(world.verdicts) == 1, "nothing was missing"
    world.close()


async def test_a_bullet_that_does_harm_is_removed(tmp_path):
    world = HarnessWorld(
        tmp_path, AceRecipe(AceKnobs(batch_size=3)), superstitious, policy="always"
    )
    for start in (0, 3):
        for task in house.TRAIN[start : start + 3]:
            world.report(task)
        await world.run()
    texts = {entry.config["text"] for entry in world.tree}
    assert not any("luck" in text for text in texts)
    assert texts == set(house.WORDS.values())
    assert world.state("counts")[bullet_id("Trust your luck.")] == {"helpful": 0, "harmful": 3}
    world.close()


def superstitious(messages, seed):
    said = json.loads(reviewer(messages, seed))
    if "add" in said and "luck" not in messages[-1]["content"]:
        said["add"].append("Trust your luck.")
    return json.dumps(said)


@pytest.mark.parametrize("said", ["rubbish", '{"add": "text"}', '{"insight": 3, "add": [1, {}]}'])
async def test_an_unreadable_answer_changes_nothing(tmp_path, said):
    world = HarnessWorld(tmp_path, AceRecipe(AceKnobs(batch_size=1)), lambda messages, seed: said)
    world.report(house.TRAIN[0])
    await world.run()
    assert world.verdicts == {}
    world.close()


async def test_a_bullet_that_was_turned_down_is_not_tried_again(tmp_path):
    def stubborn(messages, seed):
        return json.dumps({"insight": "luck", "add": ["Trust your luck."]})

    world = HarnessWorld(tmp_path, AceRecipe(AceKnobs(batch_size=1)), stubborn)
    for task in house.TRAIN[:2]:
        world.report(task)
        await world.run()
    assert world.outcomes == ["ReleaseRejected"]
    world.close()
