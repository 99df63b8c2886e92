"""The harness of a scenario: the entries that serve, their changes, and how to install them."""

import re
from collections.abc import Iterator
from difflib import unified_diff
from typing import Annotated, Any
from urllib.parse import quote

import orjson
import typer
from rich.table import Table
from rich.text import Text

from reefcli.commands.releases import decided, tell_evidence, told_run
from reefcli.errors import CommandFailed
from reefcli.gateway import Gateway, find
from reefcli.options import DEFAULT_STATE_DIR, PLAIN, AsJson, Limit, StateDir, Url
from reefcli.output import ago, console, print_asked, print_json, print_story, print_table
from reefcli.step_story import tell_evaluation, tell_step
from reefcommon.harness.files import TREE_NAME

_SCENARIO = "Whose harness."
_OF = "A release, or a rejected candidate. Default: the newest with runs."
_SHOWN = "A release; or the number of a step, or the id of a candidate or proposal. Default: head."
_STEP = re.compile(r"[0-9]+|(?:job|cnd|prp)-[0-9a-f]+")
Scenario = Annotated[str, typer.Option(help=_SCENARIO)]

harness = typer.Typer(
    name="harness",
    no_args_is_help=True,
    **PLAIN,
    help=f"""{__doc__}

Rules, memory, skills and commands that recipes have written and evaluated. Agents get them by
`reef harness install`, plain clients with `harness: {{apply: …}}` in serve.yaml.
""",
)


@harness.command()
def show(
    name: Annotated[str | None, typer.Argument(help=_SHOWN)] = None,
    scenario: Scenario = "default",
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """The entries that serve, or a whole step: proposal, dialogue, episodes, verdict.

    Examples:

      reef harness show

      reef harness show 3

      reef harness show r0-7e438a --json
    """
    gateway = find(url, state_dir)
    if name is None:
        entries = _entries(gateway, scenario, None)
        _print(entries, entries, [], as_json)
    elif _STEP.fullmatch(name):
        steps = _steps(gateway, scenario, name)
        if not steps:
            raise CommandFailed(f"no step {name} of scenario {scenario!r} is kept")
        _print(steps, None, steps, as_json)
    else:
        release = _release(gateway, scenario, name)
        entries = _entries_of(gateway, release)
        steps = _steps(gateway, scenario, release.get("candidate_id"))
        evaluation = release.get("evaluation")
        found = {"entries": entries, "steps": steps, "evaluation": evaluation}
        _print(found, entries, steps, as_json)
        if evaluation and not steps and not as_json:
            print_story(tell_evaluation(evaluation))


@harness.command()
def releases(
    scenario: Scenario = "default",
    limit: Limit = 20,
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """The releases that changed the harness, newest first.

    Example:

      reef harness releases
    """
    gateway = find(url, state_dir)
    rows = gateway.get("/reef/harness/releases", scenario=scenario, limit=limit)["data"]
    if as_json:
        print_json(rows)
        return
    cells = [(r["release_id"], r["operation"], ago(r["created_at"]), r["reason"]) for r in rows]
    empty = f"no release of scenario {scenario!r} has changed its harness"
    names = ("release", "operation", "when", "reason")
    print_table(names, cells, whole=("release",), empty=empty)
    print_asked(gateway.url)


@harness.command()
def diff(
    before: Annotated[str, typer.Argument(help="A release (`reef releases`).")],
    after: Annotated[str | None, typer.Argument(help="Default: the head.")] = None,
    scenario: Scenario = "default",
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """The difference between the harnesses of two releases.

    Example:

      reef harness diff r0-7e438a
    """
    gateway = find(url, state_dir)
    old, new = (lines(_entries(gateway, scenario, name)) for name in (before, after))
    found = unified_diff(list(old), list(new), before, after or "head", lineterm="")
    typer.echo("\n".join(found) or "no difference")


@harness.command()
def episodes(
    of: Annotated[str | None, typer.Argument(metavar="ID", help=_OF)] = None,
    scenario: Scenario = "default",
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """The runs of an agent behind a verdict, candidate and head side by side.

    Examples:

      reef harness episodes

      reef harness episodes r1-7e438a
    """
    row = judged(find(url, state_dir), scenario, of)
    if as_json:
        print_json(row["evaluation"]["tasks"])
        return
    print_story([(label, text) for label, text in tell_evidence(row) if label != "task"][:3])
    table = Table(box=None, padding=(0, 2, 1, 0), show_edge=False)
    for title in ("task", "candidate", "head"):
        table.add_column(title, overflow="fold", ratio=1 if title == "task" else 3)
    for task in row["evaluation"]["tasks"]:
        sides = (Text("\n".join(run_lines(task, side))) for side in ("candidate", "head"))
        table.add_row(Text(task["task"]), *sides)
    console().print(table)


@harness.command()
def install(
    adapter: Annotated[str, typer.Argument(help="The agent.")] = "pi",
    scenario: Scenario = "default",
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """Print the command that installs an agent with this harness, here or elsewhere.

    Example:

      reef harness install pi
    """
    gateway = find(url, state_dir)
    known = [row["name"] for row in gateway.get("/reef/harness/adapters")["data"]]
    if adapter not in known:
        raise CommandFailed(f"there is no agent {adapter!r}; there are: {', '.join(known)}")
    query = f"adapter={adapter}" + (f"&scenario={quote(scenario)}" if scenario != "default" else "")
    place = f"'{gateway.url}/reef/harness/install?{query}'"
    text = f'curl -fsS -H "Authorization: Bearer $REEF_TOKEN" {place} | bash'
    console().print(text, markup=False, soft_wrap=True, highlight=False)


def judged(gateway: Gateway, scenario: str, of: str | None) -> dict[str, Any]:
    """Return the newest verdict with runs, or that of a release or a candidate."""
    rows = decided(gateway, scenario, of or "")
    for row in sorted(rows, key=lambda row: row.get("created_at") or row["at"], reverse=True):
        tasks = (row["evaluation"] or {}).get("tasks") or ()
        ran = any(task.get("candidate_run") or task.get("head_run") for task in tasks)
        if ran:
            return row
    named = f" of {of}" if of else ""
    remedy = "`reef releases --evidence ID` shows verdicts by other runners"
    raise CommandFailed(f"scenario {scenario!r} has no runs of an agent{named}: {remedy}")


def run_lines(task: dict[str, Any], side: str) -> Iterator[str]:
    """Yield the lines of a side's run: its score and words, its end, its steps."""
    score, run = task.get(side), task.get(f"{side}_run")
    shown = "no run" if score is None else f"{score:.3g}"
    yield " ".join(filter(None, (shown, task.get(f"{side}_words", ""))))
    if run:
        yield told_run(run)
        yield from run["lines"]


def lines(entries: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of entries: a head with kind and id, then each field."""
    for entry in entries:
        off = " (disabled)" if entry["disabled"] else ""
        yield f"[{entry['kind']}] {entry['id']}{off}"
        for name, value in entry["config"].items():
            text = value if isinstance(value, str) else orjson.dumps(value).decode()
            first, *rest = text.splitlines() or [""]
            yield f"  {name}: {first}"
            yield from (f"    {line}" for line in rest)


def _print(
    whole: Any, entries: list[dict[str, Any]] | None, steps: list[dict[str, Any]], as_json: bool
) -> None:
    if as_json:
        print_json(whole)
        return
    if entries is not None:
        typer.echo("\n".join(lines(entries)) or "the harness is empty")
    for step in steps:
        typer.echo("")
        print_story(tell_step(step))


def _steps(gateway: Gateway, scenario: str, name: str | None) -> list[dict[str, Any]]:
    if name is None:
        return []
    path = f"/reef/harness/steps/{quote(name, safe='')}"
    return list(gateway.get(path, scenario=scenario)["data"])


def _entries(gateway: Gateway, scenario: str, release_id: str | None) -> list[dict[str, Any]]:
    if release_id is None:
        return list(gateway.get("/reef/harness", scenario=scenario)["entries"])
    return _entries_of(gateway, _release(gateway, scenario, release_id))


def _release(gateway: Gateway, scenario: str, release_id: str) -> dict[str, Any]:
    rows = gateway.get(f"/reef/scenarios/{scenario}/releases", limit=1000)["data"]
    named: list[dict[str, Any]] = [r for r in rows if r["release_id"].startswith(release_id)]
    if len(named) != 1:
        words = "no release" if not named else f"{len(named)} releases"
        raise CommandFailed(f"{words} {release_id} in scenario {scenario!r}")
    return named[0]


def _entries_of(gateway: Gateway, release: dict[str, Any]) -> list[dict[str, Any]]:
    if "harness" not in release["contents"]:
        return []
    name, scenario = quote(release["release_id"], safe=""), release["scenario"]
    place = f"/reef/scenarios/{scenario}/releases/{name}/contents/harness/{TREE_NAME}"
    return list(orjson.loads(gateway.download(place))["entries"])
