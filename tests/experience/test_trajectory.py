"""Turns of one session as one sequence of tokens."""

from hypothesis import given
from hypothesis import strategies as st

from services.experience.domain.trajectory import Turn, assemble

TOKENS = st.lists(st.integers(0, 9), max_size=6)
SOME = st.lists(st.integers(0, 9), min_size=1, max_size=6)


def turn(prompt: list[int], sampled: list[int], logprob: float = -1.0) -> Turn:
    return Turn(prompt, sampled, [logprob] * len(sampled))


def test_one_turn() -> None:
    made = assemble([turn([1, 2], [3, 0])], realign_tokens=0)
    assert made is not None
    assert (made.tokens, made.prompt_length, made.mask, made.logprobs) == (
        (1, 2, 3, 0),
        2,
        (1, 1),
        (-1.0, -1.0),
    )


def test_two_tool_results_in_a_row_are_the_rendering_of_the_whole_conversation() -> None:
    """E9: the tokens are the last prompt and its answer; only what was sampled is trained on."""
    call, results, answer = [5, 6, 0], [20, 21, 22, 23], [7, 0]
    made = assemble([turn([1, 2], call), turn([1, 2, *call, *results], answer)], realign_tokens=0)
    assert made is not None
    assert made.tokens == (1, 2, *call, *results, *answer)
    assert made.mask == (1, 1, 1, 0, 0, 0, 0, 1, 1)


def test_a_rendering_that_differs_within_the_latest_response_takes_its_place_masked() -> None:
    dropped = assemble([turn([1], [8, 8, 3]), turn([1, 3, 4], [5])], realign_tokens=3)
    assert dropped is not None
    assert (dropped.tokens, dropped.mask, dropped.logprobs) == (
        (1, 3, 4, 5),
        (0, 0, 1),
        (0.0, 0.0, -1.0),
    )
    kept = assemble([turn([1], [8, 9, 3]), turn([1, 8, 4], [5])], realign_tokens=2)
    assert kept is not None
    assert (kept.tokens, kept.mask) == ((1, 8, 4, 5), (1, 0, 1))


def test_a_difference_before_the_latest_response_or_beyond_the_bound_is_a_fork() -> None:
    assert assemble([turn([1], [8, 8, 3]), turn([1, 3, 4], [5])], realign_tokens=2) is None
    assert assemble([turn([1, 2], [3]), turn([1, 9, 3, 4], [5])], realign_tokens=99) is None
    three = [turn([1], [2]), turn([1, 2, 3], [4]), turn([1, 9, 3, 4, 5], [6])]
    assert assemble(three, realign_tokens=99) is None
    assert assemble([turn([1, 2], [3]), turn([1], [5])], realign_tokens=99) is None


@given(prompt=SOME, turns=st.lists(st.tuples(TOKENS, SOME), min_size=1, max_size=5))
def test_turns_that_extend_one_another_are_masked_exactly_where_they_were_sampled(
    prompt: list[int], turns: list[tuple[list[int], list[int]]]
) -> None:
    so_far = list(prompt)
    made_of, expected_mask = [], []
    for number, (between, sampled) in enumerate(turns):
        so_far += between if number else []
        expected_mask += [0] * len(between) if number else []
        made_of.append(
            Turn(tuple(so_far), tuple(sampled), tuple(-float(n + 1) for n in range(len(sampled))))
        )
        so_far += sampled
        expected_mask += [1] * len(sampled)
    made = assemble(made_of, realign_tokens=0)
    assert made is not None
    assert made.tokens == tuple(so_far)
    assert made.mask == tuple(expected_mask)
    assert [
        logprob for logprob, trained in zip(made.logprobs, made.mask, strict=True) if trained
    ] == [lp for t in made_of for lp in t.logprobs]


@given(turns=st.lists(st.tuples(SOME, SOME), min_size=1, max_size=5), bound=st.integers(0, 8))
def test_whatever_comes_of_any_turns_is_well_formed(
    turns: list[tuple[list[int], list[int]]], bound: int
) -> None:
    made = assemble([turn(prompt, sampled) for prompt, sampled in turns], realign_tokens=bound)
    if made is None:
        return
    last_prompt, last_sampled = turns[-1]
    assert made.tokens == (*last_prompt, *last_sampled), (
        "what is trained on is what the engine saw last"
    )
    assert made.tokens[: made.prompt_length] == tuple(turns[0][0])
    assert len(made.mask) == len(made.logprobs) == len(made.tokens) - made.prompt_length
    assert all(
        logprob == (-1.0 if trained else 0.0)
        for logprob, trained in zip(made.logprobs, made.mask, strict=True)
    )
