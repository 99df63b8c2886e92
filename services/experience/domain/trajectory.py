"""Turns as exact sequences of the engine's token ids. No text is tokenised here."""

# prompt 1 | sampled 1 | between the turns | sampled 2 | ...
#          ^ prompt_length
# mask       1 1 1 1     0 0 0 0             1 1 1

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """An exchange as the engine saw it. `logprobs` has the length of `sampled`.

    Only turns of equal `kind` are joined.
    """

    prompt: tuple[int, ...]
    sampled: tuple[int, ...]
    logprobs: tuple[float, ...]
    kind: Hashable = None

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.prompt, *self.sampled)

    def continues(self, earlier: "Turn") -> bool:
        """Whether this prompt begins with the other turn's prompt and answer."""
        end = len(earlier.prompt) + len(earlier.sampled)
        may = self.kind == earlier.kind and len(self.prompt) >= end
        return may and self.prompt[:end] == earlier.tokens


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Turns, by their indices, as a sequence of tokens.

    `mask` and `logprobs` have the length of the response: `len(tokens) - prompt_length`.
    """

    turns: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    prompt_length: int = 0
    mask: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


def assemble(turns: Sequence[Turn]) -> list[Trajectory]:
    """Join turns into as few trajectories as the tokens allow.

    A turn continues the trajectory whose tokens its prompt begins with. If there is none (another
    rendering of an answer, an edited history), it begins a trajectory with its whole prompt.
    """
    chains: list[list[int]] = []
    # By length, not by time: a turn is longer than the turns that it continues.
    for index in sorted(range(len(turns)), key=lambda index: len(turns[index].prompt)):
        turn = turns[index]
        fitting = [chain for chain in chains if turn.continues(turns[chain[-1]])]
        if fitting:
            max(fitting, key=lambda chain: len(turns[chain[-1]].tokens)).append(index)
        else:
            chains.append([index])
    return [_joined(turns, chain) for chain in sorted(chains)]


def _joined(turns: Sequence[Turn], chain: Sequence[int]) -> Trajectory:
    first = turns[chain[0]]
    length = len(first.prompt)
    mask: list[int] = []
    logprobs: list[float] = []
    for index in chain:
        turn = turns[index]
        between = len(turn.prompt) - length - len(mask)
        mask += [0] * between + [1] * len(turn.sampled)
        logprobs += [0.0] * between
        logprobs += turn.logprobs
    tokens = turns[chain[-1]].tokens
    return Trajectory(tuple(chain), tokens, length, tuple(mask), tuple(logprobs))
