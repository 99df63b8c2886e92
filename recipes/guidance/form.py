"""The form of an answer: guidance between tags, and the tokens that it is made of."""

# Pure.

import re
from collections.abc import Callable, Sequence

OPEN, CLOSE = "<guidance>", "</guidance>"
# A reasoning model may think first.
_ANSWER = re.compile(
    rf"\s*(?:<think>.*?</think>\s*)?(?P<block>{OPEN}(?P<guidance>.*?){CLOSE})\s*", re.DOTALL
)


def read_guidance(answer: str, pattern: str, *, tags: bool = True) -> str | None:
    """Return the guidance of an answer; None if its form is wrong. `pattern`: of the guidance."""
    text = answer
    if tags:
        match = _match(answer)
        if match is None:
            return None
        text = match["guidance"]
    text = text.strip()
    return text if text and re.fullmatch(pattern, text, re.DOTALL) else None


def guidance_mask(
    response: Sequence[int], decode: Callable[[int], str], *, tags: bool = True
) -> list[int]:
    """Return 1 for each token of the guidance and its tags, 0 for a thought before it.

    If the form is wrong, all tokens are 1.
    """
    if not tags:
        return [1] * len(response)
    # Token by token: a character may be split between two, but no tag and no order changes.
    pieces = [decode(token) for token in response]
    match = _match("".join(pieces))
    if match is None:
        return [1] * len(response)
    start, end = match.span("block")
    mask, place = [], 0
    for piece in pieces:
        inside = place < end and place + len(piece) > start
        # The token that ends the answer has no text: to end there is part of the form.
        mask.append(int(inside or (place >= end and not piece)))
        place += len(piece)
    return mask


def _match(answer: str) -> re.Match[str] | None:
    match = _ANSWER.fullmatch(answer)
    nested = match is not None and (OPEN in match["guidance"] or CLOSE in match["guidance"])
    return None if nested else match
