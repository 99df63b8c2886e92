"""Turns as exact sequences of tokens."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.experience.domain.trajectory import Turn, assemble

TOKENS = st.lists(st.integers(0, 9), max_size=6)
SOME = st.lists(st.integers(0, 9), min_size=1, max_size=6)


def turn(prompt: list[int], sampled: list[int], kind: object = None, logprob: float = -1.0) -> Turn:
    return Turn(tuple(prompt), tuple(sampled), (logprob,) * len(sampled), kind)


def test_one_turn() -> None:
    (made,) = assemble([turn([1, 2], [3, 0])])
    assert (made.tokens, made.prompt_length, made.mask, made.logprobs) == (
        (1, 2, 3, 0),
        2,
        (1, 1),
        (-1.0, -1.0),
    )


def test_two_tool_results_in_a_row_are_between_the_sampled_tokens() -> None:
    call, results, answer = [5, 6, 0], [20, 21, 22, 23], [7, 0]
    (made,) = assemble([turn([1, 2], call), turn([1, 2, *call, *results], answer)])
    assert made.tokens == (1, 2, *call, *results, *answer)
    assert made.mask == (1, 1, 1, 0, 0, 0, 0, 1, 1)


def test_a_template_that_strips_each_earlier_answer_makes_a_trajectory_a_turn() -> None:
    """Whatever the length of the stripped part: each sampled token is trained on once."""
    thought = list(range(100, 2100))
    turns = [turn([1], [*thought, 3]), turn([1, 3, 4], [*thought, 5]), turn([1, 3, 4, 5, 6], [7])]
    made = assemble(turns)
    assert [one.turns for one in made] == [(0,), (1,), (2,)]
    assert all(all(one.mask) for one in made)
    assert sum(map(sum, (one.mask for one in made))) == 2001 + 2001 + 1


def test_an_answer_that_is_rendered_otherwise_once_begins_a_second_trajectory() -> None:
    turns = [turn([1], [8, 9]), turn([1, 8, 9, 2], [3]), turn([1, 89, 2, 3, 4], [5])]
    assert [one.turns for one in assemble(turns)] == [(0, 1), (2,)]


def test_branches_of_one_turn_share_its_tokens_but_train_them_once() -> None:
    root, left, right = turn([1], [2]), turn([1, 2, 3], [4]), turn([1, 2, 5], [6])
    first, second = assemble([root, left, right])
    assert (first.turns, first.tokens, first.mask) == ((0, 1), (1, 2, 3, 4), (1, 0, 1))
    assert (second.tokens, second.prompt_length, second.mask) == ((1, 2, 5, 6), 3, (1,))


def test_turns_of_another_kind_are_not_joined() -> None:
    assert len(assemble([turn([1], [2], "alice"), turn([1, 2, 3], [4], "bob")])) == 2


@given(prompt=SOME, turns=st.lists(st.tuples(TOKENS, SOME), min_size=1, max_size=5))
def test_turns_that_extend_one_another_are_one_in_any_order(
    prompt: list[int], turns: list[tuple[list[int], list[int]]]
) -> None:
    so_far = list(prompt)
    made_of, expected = [], []
    for number, (between, sampled) in enumerate(turns):
        so_far += between if number else []
        expected += [0] * len(between) if number else []
        made_of.append(turn(so_far, sampled, logprob=-float(number + 1)))
        so_far += sampled
        expected += [1] * len(sampled)
    shuffled = random.Random(len(so_far)).sample(made_of, len(made_of))
    (made,) = assemble(shuffled)
    assert made.tokens == tuple(so_far)
    assert list(made.mask) == expected
    trained = [logprob for logprob, kept in zip(made.logprobs, made.mask, strict=True) if kept]
    assert trained == [logprob for one in made_of for logprob in one.logprobs]


@given(turns=st.lists(st.tuples(SOME, SOME), min_size=1, max_size=6))
def test_each_sampled_token_is_trained_on_once_at_the_tokens_that_the_engine_saw(
    turns: list[tuple[list[int], list[int]]],
) -> None:
    given_turns = [turn(prompt, sampled) for prompt, sampled in turns]
    made = assemble(given_turns)
    assert sorted(index for one in made for index in one.turns) == list(range(len(turns)))
    for one in made:
        last = given_turns[one.turns[-1]]
        assert one.tokens == last.tokens
        assert one.tokens[: one.prompt_length] == given_turns[one.turns[0]].prompt
        assert len(one.mask) == len(one.logprobs) == len(one.tokens) - one.prompt_length
        assert sum(one.mask) == sum(len(given_turns[index].sampled) for index in one.turns)
        for before, after in pairwise(one.turns):
            assert given_turns[after].continues(given_turns[before])
