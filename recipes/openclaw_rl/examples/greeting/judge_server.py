"""A scripted judge behind an OpenAI endpoint: it reads the next state by rules."""

#     python -m recipes.openclaw_rl.examples.greeting.judge_server --port 8931
#
# A model of 135M parameters cannot judge. This judge sees the prompts of a real one and answers in
# the same form, but understands only thanks and wishes of the form "greet me with WORD".

import argparse
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from recipes.openclaw_rl.judge import HINT_END, HINT_START, NEXT
from recipes.reflection.examples.server import serving as scripted

_NEXT = re.compile(rf'<{NEXT} role="(\w+)">\n(.*?)\n</{NEXT}>', re.DOTALL)
_WISH = re.compile(r"\bgreet(?:ed)?(?: me)? with (\w+)", re.IGNORECASE)
_THANKS = re.compile(r"\bthank", re.IGNORECASE)
_ERROR = re.compile(r"\b(error|exception|failed)\b", re.IGNORECASE)


def judged(messages: list[dict[str, Any]]) -> str:
    """Return the judge's answer to a question of `recipes.openclaw_rl.judge`."""
    wants_hint = HINT_START in str(messages[0].get("content"))
    found = _NEXT.findall(str(messages[-1].get("content")))
    role, words = found[-1] if found else ("", "")
    if wants_hint:
        wish = _WISH.search(words)
        if wish is None or _THANKS.search(words):
            return r"Nothing here that the assistant could have known. \boxed{-1}"
        hint = f"Greet the user with {wish[1]} first."
        return rf"The user says how to be greeted. \boxed{{1}} {HINT_START}{hint}{HINT_END}"
    if role == "tool":
        vote = -1 if _ERROR.search(words) else 1
    else:
        vote = 1 if _THANKS.search(words) else -1 if _WISH.search(words) else 0
    return rf"The next state is of the role {role or 'none'}. \boxed{{{vote}}}"


@contextmanager
def serving(port: int = 0) -> Iterator[str]:
    """Run the judge on loopback in a thread. Yields its base URL. Port 0: a free port."""
    with scripted(lambda messages, _seed: judged(messages), port) as url:
        yield f"{url}/v1"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8931)
    with serving(parser.parse_args().port) as url:
        print(f"the scripted judge listens on {url}; Ctrl-C stops it")  # noqa: T201
        with suppress(KeyboardInterrupt):
            signal.pause()
