"""The commands of `reef`, a module each; typer turns its function into the command."""
