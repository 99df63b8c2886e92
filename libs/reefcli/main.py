"""The `reef` command. Its commands are in a newcomer's order."""

import ast
import importlib
import importlib.util
import re
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from reefcli.options import PLAIN
from reefcommon.errors import ReefError

_ABOUT = """Serve an agent's model behind an OpenAI endpoint, and let it learn from its own traffic.

Start here:

  reef serve -c serve.yaml      start everything on this machine

  reef status                   what runs, and what it did last

  reef releases                 what each scenario serves, and its history

  reef doctor                   what is missing, when something does not work

Commands that talk to a running Reef find it by --url, else by $REEF_GATEWAY_URL, else by the state
directory (--state-dir, .reef); no other Reef is ever asked. A token is read from $REEF_TOKEN.
`reef COMMAND --help` shows examples.
"""

# name -> module:function, imported on use: `reef status` must not wait for the imports of `serve`.
_COMMANDS = {
    "serve": "reefcli.commands.serve:serve",
    "demo": "reefcli.demo.command:demo",
    "status": "reefcli.commands.status:status",
    "releases": "reefcli.commands.releases:releases",
    "rollback": "reefcli.commands.releases:rollback",
    "promote": "reefcli.commands.releases:promote",
    "hold": "reefcli.commands.hold:hold",
    "resume": "reefcli.commands.hold:resume",
    "canary": "reefcli.commands.canary:canary",
    "records": "reefcli.commands.records:records",
    "harness": "reefcli.commands.proposals:harness",
    "recipes": "reefcli.commands.recipes:recipes",
    "topics": "reefcli.commands.topics:topics",
    "dlq": "reefcli.commands.dlq:dlq",
    "replay": "reefcli.commands.replay:replay",
    "doctor": "reefcli.commands.doctor:doctor",
}


class ReefGroup(TyperGroup):
    """Loads a command when used, and prints an error as a single line (exit code 1)."""

    _listing = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        # While the list is printed, a stub with the summary stands for each command.
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False

    def list_commands(self, _ctx: Any) -> list[str]:
        """All commands, in the order of `_COMMANDS`."""
        return [*_COMMANDS]

    def get_command(self, _ctx: Any, name: str) -> Any:
        """Return the command called `name`, or None."""
        place = _COMMANDS.get(name)
        if place is None:
            return None
        if self._listing:
            return TyperCommand(name, help=summary(place))
        module, _, function = place.partition(":")
        found = getattr(importlib.import_module(module), function)
        if isinstance(found, typer.Typer):  # a command with commands of its own
            return _rewrapped(get_command(found))
        one = typer.Typer(**PLAIN)
        one.command(name)(found)
        return _rewrapped(get_command(one))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the named command; for an unknown name, suggest others."""
        # typer looks for close names among the commands that it knows: give it all of them.
        if args and args[0] not in _COMMANDS:
            self.commands.update({name: TyperCommand(name) for name in self.list_commands(ctx)})
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ReefError as error:
            typer.echo(f"reef: {error}", err=True)
            raise typer.Exit(1) from None


def _unwrapped(text: str) -> str:
    """Make one line of each paragraph: a terminal breaks it anew."""
    return re.sub(r"(?<=\S)\n(?=\S)", " ", text)


def _rewrapped(command: Any) -> Any:
    for one in (command, *getattr(command, "commands", {}).values()):
        one.help = _unwrapped(one.help or "")
    return command


def summary(place: str) -> str:
    """Return the first paragraph of a command's help, read from its source without an import."""
    module, _, name = place.partition(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n\n")[0]
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("reefcli.commands.")
            and any(each.name == name for each in node.names)
        ):
            return summary(f"{node.module}:{name}")  # a group that another module adds to
    return (ast.get_docstring(tree) or "").partition("\n")[0]  # a group of commands


cli = typer.Typer(
    cls=ReefGroup, name="reef", help=_unwrapped(_ABOUT), no_args_is_help=True, **PLAIN
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"reef {version('reef-agent')}")
        raise typer.Exit


_Version = Annotated[
    bool,
    typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
]


@cli.callback()
def _reef(_version: _Version = False) -> None:
    """Replaced by the help text above; the callback makes typer build a group."""
