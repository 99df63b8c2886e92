"""Commands that the pages name: `reef` and the modules know their words and options."""

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

from reefcli.demo.variant import demonstrations
from reefcli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("services/*/README.md"),
        *ROOT.glob("recipes/README.md"),
    ]
)
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
PLACEHOLDER = re.compile(r"[…|]|\b[A-Z]{2,}\b")
_BEFORE = r"^(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?"


def commands(page: Path) -> Iterator[str]:
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL))
    yield from re.sub(r"\\\n\s*", "", blocks).splitlines()
    without = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for named in re.findall(r"`([^`]+)`", without):
        yield " ".join(named.split())


def of(program: str, page: Path) -> list[list[str]]:
    found = (re.match(_BEFORE + program + " (.+)$", line) for line in commands(page))
    return [shlex.split(match[1], comments=True) for match in found if match]


def parsed(words: list[str]) -> tuple[str, dict[str, object]]:
    """Return the command and the options of `reef WORDS`. Raises UsageError."""
    command: Any = get_command(cli)
    context = command.context_class(command, info_name="reef")
    while isinstance(command, TyperGroup) and words and not words[0].startswith("-"):
        _, command, words = command.resolve_command(context, words)
        context = command.context_class(command, info_name=command.name, parent=context)
    try:
        options, _, _ = command.make_parser(context).parse_args(list(words))
    except UsageError as error:
        if type(error).__name__ != "BadOptionUsage":  # `reef serve -c` in a sentence
            raise
        options = {}
    return command.name or "", options


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_reef_knows_the_commands_of_a_page(page):
    for words in of("reef", page):
        name, options = parsed(words)
        recipe = str(options.get("recipe") or "sao")
        if name == "demo" and not PLACEHOLDER.search(recipe):
            models = demonstrations(recipe)
            assert options.get("model") in (None, *models), words
            arms = {arm.name for make in models.values() for arm in make().arms}
            assert {*str(options.get("arms") or "all").split(",")} <= {"all", *arms}, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_modules_of_a_page_exist_and_know_their_options(page):
    for name, *words in of("python -m", page):
        if PLACEHOLDER.search(name) or name == "pytest":
            continue
        spec = importlib.util.find_spec(name)
        assert spec is not None, name
        assert spec.origin is not None, name
        folder = "".join(path.read_text() for path in Path(spec.origin).parent.glob("*.py"))
        for word in words:
            if word.startswith("--") and word != "--help":
                assert f'"{word}"' in folder, (name, word)


def test_a_command_that_does_not_exist_is_told():
    with pytest.raises(UsageError):
        parsed(["improve"])
    with pytest.raises(UsageError):
        parsed(["demo", "--faster"])
