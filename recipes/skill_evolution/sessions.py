"""Ended sessions: the window of a night, their transcripts, and the skills they refer to. Pure."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, time, timedelta
from typing import Any

from recipes.openclaw_rl.judge import text_of
from recipes.reflection.asking import short
from reefcommon.events import Unit


def night_before(moment: datetime, at: time) -> datetime:
    """Return the last time of day `at`, in the zone of `moment`, that is not after it."""
    tonight = datetime.combine(moment.date(), at, moment.tzinfo)
    return tonight if tonight <= moment else tonight - timedelta(days=1)


def window(waiting: Sequence[Unit], night: time | None, every: int, most: int) -> tuple[Unit, ...]:
    """Return the sessions to work on, oldest first: those before the last night, or `every`."""
    if night is None:
        return tuple(waiting[:every]) if len(waiting) >= every else ()
    # The clock is that of the sessions: a night is over when a session ends after it. So the same
    # sessions make the same window, also in a replay.
    newest = max((unit.at for unit in waiting), default=None)
    if newest is None:
        return ()
    over = night_before(newest, night)
    return tuple(unit for unit in waiting if unit.at < over)[:most]


def transcript(unit: Unit, limit: int) -> str:
    """Return the messages of a session; of a long one its beginning and its end."""
    lines = [f"{message.get('role')}: {text_of(message)}" for message in unit.messages]
    return short("\n\n".join(lines), limit)


def referenced(unit: Unit, names: Sequence[str]) -> tuple[str, ...]:
    """Return the skills that the assistant named, or looked up, in a session."""
    # Its own words and calls alone: the list of all skills stands in each prompt.
    said = "\n".join(text_of(m) for m in unit.messages if m.get("role") == "assistant")
    return tuple(n for n in names if re.search(rf"(?<![\w-]){re.escape(n)}(?![\w-])", said))


def counted(
    counts: Mapping[str, Mapping[str, int]], skills: Sequence[str], *, good: bool
) -> dict[str, dict[str, int]]:
    """Return the counts after a session that referred to these skills."""
    result = {name: dict(count) for name, count in counts.items()}
    for name in skills:
        count: dict[str, Any] = result.setdefault(name, {"helpful": 0, "harmful": 0})
        count["helpful" if good else "harmful"] += 1
    return result
