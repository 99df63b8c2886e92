"""The `reef` command, also as `python -m reefcli`: it listens for Ctrl-C before it imports what takes a second."""

from reefcli.early import watch


def app() -> None:
    """Entry point of the console script."""
    watch()
    from reefcli.main import cli

    cli()


if __name__ == "__main__":
    app()
