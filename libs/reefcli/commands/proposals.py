"""Proposals for a harness: sent, and looked up. Commands of `reef harness`."""

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from reefcli.commands.harness import Scenario, harness
from reefcli.errors import CommandFailed
from reefcli.gateway import find
from reefcli.options import DEFAULT_STATE_DIR, AsJson, StateDir, Url
from reefcli.output import ago, print_json, print_table
from reefcommon.ids import digest

_FILE = "YAML or JSON: a list of mutations, or a mapping with `mutations` and `reason`."
_KEY = "Idempotency key: the same command again is the same proposal."


@harness.command()
def propose(
    file: Annotated[Path | None, typer.Argument(help=_FILE)] = None,
    rule: Annotated[str | None, typer.Option(help="Propose a rule with this text.")] = None,
    words: Annotated[
        str | None, typer.Option("--words", help="Tell the recipe in words what to change.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Shown with the release.")] = "",
    key: Annotated[str | None, typer.Option(help=_KEY)] = None,
    scenario: Scenario = "default",
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """Propose a change. It is admitted and judged as a recipe's own proposal.

    Examples:

      reef harness propose --rule "Answer in whole sentences."

      reef harness propose change.yaml

      reef harness propose --words "People want shorter answers."
    """
    if sum(one is not None for one in (file, rule, words)) != 1:
        raise CommandFailed("name a FILE, or --rule TEXT, or --words TEXT")
    gateway = find(url, state_dir)
    own: dict[str, Any] = {"key": key} if key else {}
    if words is not None:
        route, body = "/reef/train", {"text": words, **own}
    else:
        given = _read(file) if file is not None else {"mutations": [_rule(rule or "")]}
        why = {"reason": reason} if reason else {}
        route, body = "/reef/harness/proposals", {**given, **why, **own}
    sent = gateway.post(f"{route}?scenario={scenario}", body)
    typer.echo(f"{sent['proposal_id']} {sent['state']}")


@harness.command()
def proposals(
    proposal_id: Annotated[str | None, typer.Argument(help="Default: all.")] = None,
    scenario: Scenario = "default",
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """The proposals that were sent, with their states, newest first.

    Example:

      reef harness proposals
    """
    gateway, path = find(url, state_dir), "/reef/harness/proposals"
    if proposal_id is None:
        rows = gateway.get(path, scenario=scenario)["data"]
    else:
        rows = [gateway.get(f"{path}/{proposal_id}", scenario=scenario)]
    if as_json:
        print_json(rows)
        return
    cells = [(r["proposal_id"], r["state"], ago(r["at"]), r["kind"], r["reason"]) for r in rows]
    names = ("proposal", "state", "when", "kind", "reason")
    print_table(names, cells, empty=f"nothing was proposed for scenario {scenario!r}")


def _rule(text: str) -> dict[str, Any]:
    options = {"kind": "rules", "config": {"text": text}}
    return {"op": "create", "id": f"rule-{digest('rule', text, length=12)}", "options": options}


def _read(file: Path) -> dict[str, Any]:
    try:
        given = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CommandFailed(f"cannot read {file}: {' '.join(str(error).split())[:300]}") from None
    if isinstance(given, list):
        return {"mutations": given}
    if not isinstance(given, dict) or "mutations" not in given:
        raise CommandFailed(f"{file}: {_FILE}")
    return given
