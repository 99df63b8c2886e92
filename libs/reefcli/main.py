"""The `reef` command: what there is, in the order in which a newcomer needs it."""

import importlib
import importlib.util
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from reefcommon.errors import ReefError

_ABOUT = """Serve an agent's model behind an OpenAI endpoint, and let it learn from its own traffic.

Start here:

  reef serve -c serve.yaml      start everything on this machine

  reef status                   what runs, and what it did last

  reef releases                 what each scenario serves, and its history

  reef doctor                   what is missing, when something does not work

Commands that talk to a running Reef find it by --url, else by $REEF_GATEWAY_URL, else by the state directory (--state-dir, .reef).
Where none of these leads to one they say so: no other Reef is ever asked.
A token is read from $REEF_TOKEN. `reef COMMAND --help` shows examples.
"""

# name -> module:function, imported only when it is asked for: `reef status` must not wait for what `reef serve` needs.
_COMMANDS = {
    "serve": "reefcli.commands.serve:serve",
    "demo": "reefcli.demo.command:demo",
    "status": "reefcli.commands.status:status",
    "releases": "reefcli.commands.releases:releases",
    "rollback": "reefcli.commands.heads:rollback",
    "promote": "reefcli.commands.heads:promote",
    "records": "reefcli.commands.records:records",
    "recipes": "reefcli.commands.recipes:recipes",
    "topics": "reefcli.commands.topics:topics",
    "dlq": "reefcli.commands.dlq:dlq",
    "replay": "reefcli.commands.replay:replay",
    "doctor": "reefcli.commands.doctor:doctor",
}
# What the list of commands says of each: the first paragraph of its own help (a test compares), so that `reef --help` imports none.
SUMMARIES = {
    "serve": "Start everything that a serve.yaml asks for, on this machine, without containers and root.",
    "demo": "See the whole loop: users ask, their rewards train a LoRA, and winners serve at once.",
    "status": "What runs, how far behind it is, what learns, and what it did last.",
    "releases": "Which versions there were, which one serves, and why.",
    "rollback": "Serve an earlier release again. It becomes a new release with the old content; nothing is deleted.",
    "promote": "Let a release that waits for a person serve (recipes with `review: manual`).",
    "records": "What was asked and answered, newest first; or one record and what became of it: reports, samples, training step, release.",
    "recipes": "The learning methods that are installed.",
    "topics": "Which events lie in which topic, by what key, who writes and who reads them.",
    "dlq": "Dead letters: events that a consumer could never handle, each with its reason.",
    "replay": "Read the whole log again into an empty store, and compare it with the running system.",
    "doctor": "Look at this machine: Python, programs, libraries, ports, disk, memory, and a serve.yaml.",
}
_PLAIN: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
}


class ReefGroup(TyperGroup):
    """Loads commands when they are used, and turns an error made for a person into one line on stderr and exit code 1."""

    _listing = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of commands, without loading them."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False

    def list_commands(self, _ctx: Any) -> list[str]:
        """All commands, in the order of `_COMMANDS`."""
        return [name for name, place in _COMMANDS.items() if _is_there(place)]

    def get_command(self, _ctx: Any, name: str) -> Any:
        """The command called `name`; None where there is none."""
        place = _COMMANDS.get(name)
        if place is None or not _is_there(place):
            return None
        if self._listing:
            return TyperCommand(name, help=SUMMARIES[name])
        module, _, function = place.partition(":")
        found = getattr(importlib.import_module(module), function)
        if isinstance(found, typer.Typer):  # a command with commands of its own
            return get_command(found)
        one = typer.Typer(**_PLAIN)
        one.command(name)(found)
        return get_command(one)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant; an unknown one is compared with all there are."""
        if args and args[0] not in _COMMANDS:
            self.commands.update({name: TyperCommand(name) for name in self.list_commands(ctx)})
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except ReefError as error:
            typer.echo(f"reef: {error}", err=True)
            raise typer.Exit(1) from None


def _is_there(place: str) -> bool:
    module = place.partition(":")[0]
    parent = module.rpartition(".")[0]
    return (
        importlib.util.find_spec(parent) is not None
        and importlib.util.find_spec(module) is not None
    )


cli = typer.Typer(cls=ReefGroup, name="reef", help=_ABOUT, no_args_is_help=True, **_PLAIN)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"reef {version('reef-agent')}")
        raise typer.Exit


@cli.callback()
def _reef(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Replaced by the help text above; the callback makes typer build a group."""
