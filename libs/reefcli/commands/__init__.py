"""One module per command of `reef`; each has one function that typer turns into the command."""
