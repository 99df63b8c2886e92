"""Trees and mutations: immutable, whole or not at all; and how an episode runs under a tree."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reefcommon.harness.delivery import episode_messages, render_chat
from reefcommon.harness.tree import (
    Entry,
    Inadmissible,
    Mutation,
    apply,
)

IDS = st.sampled_from(["a", "b", "c", "d"])
RULE = st.builds(
    lambda text: {"kind": "rules", "config": {"text": text}}, st.text(min_size=1, max_size=5)
)
CREATES = st.builds(lambda name, options: Mutation("create", name, options), IDS, RULE)
UPDATES = st.builds(
    lambda name, options: Mutation("update", name, {"config": options["config"]}), IDS, RULE
)
REMOVES = st.builds(lambda name: Mutation("remove", name), IDS)
PROPOSALS = st.lists(CREATES | UPDATES | REMOVES, max_size=8)


@given(PROPOSALS)
def test_apply_agrees_with_a_dictionary_model_and_leaves_the_old_tree_alone(mutations):
    tree = (Entry("a", "rules", {"text": "first"}),)
    before = repr(tree)
    model = {"a": "first"}
    allowed = True
    for mutation in mutations:
        allowed = allowed and (mutation.id in model) == (mutation.op != "create")
        if mutation.op == "remove":
            model.pop(mutation.id, None)
        else:
            model[mutation.id] = mutation.options["config"]["text"]
    if allowed:
        assert {entry.id: entry.config["text"] for entry in apply(tree, mutations)} == model
    else:
        with pytest.raises(Inadmissible, match="mutation"):
            apply(tree, mutations)
    assert repr(tree) == before


def test_a_later_change_of_the_options_does_not_reach_the_tree():
    options = {"kind": "rules", "config": {"text": "one"}}
    tree = apply((), [Mutation("create", "r", options)])
    options["config"]["text"] = "two"
    assert tree[0].config["text"] == "one"


def test_update_keeps_place_and_kind():
    tree = tuple(Entry(name, "rules", {"text": name}) for name in "abc")
    updated = apply(tree, [Mutation("update", "b", {"disabled": True})])
    assert [(entry.id, entry.disabled) for entry in updated] == [
        ("a", False),
        ("b", True),
        ("c", False),
    ]
    assert apply(tree, [Mutation("update", "b", {"kind": "rules", "config": {"text": "x"}})])[
        1
    ].config == {"text": "x"}


@pytest.mark.parametrize(
    "mutation",
    [
        Mutation("update", "a", {"kind": "skill"}),
        Mutation("update", "a", {"id": "other"}),
        Mutation("update", "a", {"config": ["not", "an", "object"]}),
        Mutation("update", "a", {"disabled": "yes"}),
        Mutation("create", "b", {"config": {"text": "no kind"}}),
        Mutation("create", "b", {"kind": "hook", "config": {}}),
        Mutation("create", "b", None),
        Mutation("remove", "a", {"config": {}}),
        Mutation("rename", "a", {}),
    ],
    ids=repr,
)
def test_a_mutation_that_does_not_fit_is_refused(mutation):
    with pytest.raises(Inadmissible, match="mutation 1"):
        apply((Entry("a", "rules", {"text": "t"}),), [mutation])


SKILL = Entry(
    "s", "skill", {"name": "sieve", "description": "count primes", "text": "Cross out multiples."}
)
TREE = (
    SKILL,
    Entry("r1", "rules", {"text": "Be brief."}),
    Entry("off", "rules", {"text": "Never said."}, disabled=True),
    Entry("r2", "rules", {"text": "Greet first."}),
)


def test_chat_renders_rules_in_order_then_skills():
    assert (
        render_chat(TREE)
        == "## Rules\n- Be brief.\n- Greet first.\n\n## Skills\n### sieve\ncount primes\n\nCross out multiples."
    )
    assert render_chat(()) == ""


def test_an_episode_gets_the_prompt_before_its_own():
    task = ({"role": "user", "content": "hi"},)
    assert episode_messages((), task) == list(task)
    assert episode_messages(TREE, task) == [{"role": "system", "content": render_chat(TREE)}, *task]
    with_system = ({"role": "system", "content": "You are Reef."}, *task)
    assert (
        episode_messages(TREE, with_system)[0]["content"] == render_chat(TREE) + "\n\nYou are Reef."
    )
    parts = ({"role": "system", "content": [{"type": "text", "text": "You are Reef."}]}, *task)
    assert [part["text"] for part in episode_messages(TREE, parts)[0]["content"]] == [
        render_chat(TREE),
        "You are Reef.",
    ]
    assert with_system[0]["content"] == "You are Reef."


def test_rules_may_stand_after_the_last_user_message():
    prompt = render_chat(TREE)
    turns = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two"},
    ]
    put = episode_messages(TREE, turns, rules_at="user_end")
    assert [message["content"] for message in put] == ["one", "1", f"two\n\n{prompt}"]
    assert turns[2]["content"] == "two"
    parts = [{"role": "user", "content": [{"type": "text", "text": "two"}]}]
    (message,) = episode_messages(TREE, parts, rules_at="user_end")
    assert [part["text"] for part in message["content"]] == ["two", prompt]
    no_user = [{"role": "assistant", "content": "1"}]
    assert episode_messages(TREE, no_user, rules_at="user_end")[0]["role"] == "system"
