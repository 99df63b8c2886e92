"""The turns of one session as one sequence of tokens. Nothing is tokenised here: all ids are the engine's.

prompt 1 | sampled 1 | what the environment put between | sampled 2 | …
         ^ prompt_length
mask       1 1 1 1     0 0 0 0                            1 1 1
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange as the engine saw it. `logprobs` has the length of `sampled`."""

    prompt: Sequence[int]
    sampled: Sequence[int]
    logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """`mask` and `logprobs` have the length of the response: `len(tokens) - prompt_length`."""

    tokens: tuple[int, ...]
    prompt_length: int
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]


def assemble(turns: Sequence[Turn], *, realign_tokens: int) -> Trajectory | None:
    """Join turns, in order of time, into one trajectory; None where they fork.

    A prompt that starts with everything so far adds what is new, masked. A prompt that differs only within the latest response (a
    template that drops a scaffold, or renders the answer otherwise) puts its own rendering there, masked, where that replaces at most
    `realign_tokens` tokens. Any other difference is a fork.
    """
    first = turns[0]
    tokens = list(first.prompt)
    prompt_length = len(tokens)
    mask: list[int] = []
    logprobs: list[float] = []
    response_start = prompt_length
    for turn in turns:
        same = _common(tokens, turn.prompt)
        replaced = len(tokens) - same
        if replaced and (same < response_start or replaced > realign_tokens):
            return None
        if replaced:
            del tokens[same:], mask[same - prompt_length :], logprobs[same - prompt_length :]
        between = turn.prompt[same:]
        tokens += between
        mask += [0] * len(between)
        logprobs += [0.0] * len(between)
        response_start = len(tokens)
        tokens += turn.sampled
        mask += [1] * len(turn.sampled)
        logprobs += turn.logprobs
    return Trajectory(tuple(tokens), prompt_length, tuple(mask), tuple(logprobs))


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    limit = min(len(left), len(right))
    if list(left[:limit]) == list(right[:limit]):
        return limit
    return next(index for index in range(limit) if left[index] != right[index])
