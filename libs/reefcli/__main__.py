"""`python -m reefcli`: the same as the `reef` command."""

from reefcli.main import app

app()
