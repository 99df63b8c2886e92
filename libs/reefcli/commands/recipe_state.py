"""`reef recipes state`: the durable state of the recipes of a scenario, and their last calls."""

from pathlib import Path
from typing import Any

from reefcli.errors import CommandFailed
from reefcli.gateway import find
from reefcli.output import ago, print_json, print_story, print_table

_SHOWN_CHARS = 100


def recipe_state(where: list[str], url: str | None, state_dir: Path, *, as_json: bool) -> None:
    """Print the state. `where`: SCENARIO or SCENARIO/RECIPE.

    Raises:
        CommandFailed: no such recipe, or no answer.
    """
    if len(where) != 1:
        raise CommandFailed("name a scenario: reef recipes state SCENARIO[/RECIPE]")
    scenario, _, recipe = where[0].partition("/")
    found = find(url, state_dir).get(f"/reef/scenarios/{scenario}/recipes")
    chosen = {key: parts for key, parts in found.items() if recipe in key.partition("/")[2]}
    if not chosen:
        there = ", ".join(key.partition("/")[2] for key in found) or "none"
        raise CommandFailed(f"no recipe {recipe!r} learns from {scenario!r}; there: {there}")
    if as_json:
        print_json(chosen)
        return
    for key, parts in chosen.items():
        print_story([("recipe", key.partition("/")[2]), ("scenario", scenario)])
        rows = [(row["key"], row["bytes"], _value(row)) for row in parts["state"]]
        print_table(("key", "bytes", "value"), rows, empty="it keeps no state")
        if parts["calls"]:
            print_table(_CALLS, [_call(row) for row in parts["calls"]])


_CALLS = ("when", "model", "purpose", "tokens", "seconds", "for", "outcome")


def _value(row: dict[str, Any]) -> str:
    text: str | None = row["json"]
    if text is None:
        return "(a blob)"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _call(row: dict[str, Any]) -> tuple[Any, ...]:
    tokens = f"{row['prompt_tokens']} + {row['completion_tokens']}"
    about = (row["model"], row["purpose"], tokens, row["seconds"], row["subject"], row["outcome"])
    return (ago(row["at"]), *about)
