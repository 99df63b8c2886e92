"""The shape of the house: small files, small functions, documents that name what is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for folder in ("libs", "services", "recipes") for path in (ROOT / folder).rglob("*.py")
)
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "recipes").glob("README.md"),
        *(ROOT / "services").glob("*/README.md"),
        *(ROOT / "libs").glob("*/README.md"),
    ]
)
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_file_is_long():
    assert {name(p): n for p in SOURCES if (n := p.read_text().count("\n")) > MAX_FILE_LINES} == {}


def test_no_function_is_long():
    """Whole functions count: signature, docstring and body."""
    long = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long[f"{name(path)}:{node.name}"] = lines
    assert long == {}


def test_every_module_says_what_it_is():
    assert [
        name(p)
        for p in SOURCES
        if p.read_text().strip() and not ast.get_docstring(ast.parse(p.read_text()))
    ] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_paths_named_in_a_document_exist(document):
    """`services/gateway/app.py` in backquotes is a promise; so is a relative link."""
    text = document.read_text()
    named = set(re.findall(r"`((?:libs|services|recipes|tests|docs|infra)/[\w./-]+)`", text)) | set(
        re.findall(r"\]\((?!http)([^)#]+)\)", text)
    )
    missing = [
        path
        for path in named
        if not (ROOT / path).exists() and not (document.parent / path).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_sections_named_in_a_document_exist(document):
    """docs/events.md, *Large events* is a promise, too."""
    for page, title in re.findall(r"`?(docs/[\w-]+\.md)`?,?\s\(?\*([^*]+)\*", document.read_text()):
        heading = rf"^(?:#+ (?:.*: )?|\*\*|<!-- generated: ){re.escape(title)}"
        assert re.search(heading, (ROOT / page).read_text(), re.MULTILINE), (page, title)


@pytest.mark.parametrize(
    "service", ["gateway", "experience", "trainer", "harness", "evaluator", "publisher", "engine"]
)
def test_every_service_has_a_short_readme(service):
    lines = (ROOT / "services" / service / "README.md").read_text().splitlines()
    assert 0 < len(lines) <= 30


def test_reading_a_recipe_needs_no_torch():
    """The evaluator, the docs and `reef recipes` read recipes on any machine."""
    import subprocess
    import sys

    code = (
        "import sys, reefcommon.recipe_loading as r\n"
        "for name in ('recipes.sao.recipe:SAORecipe', 'recipes.grpo.recipe:GRPORecipe', 'recipes.feedback_rules.recipe:FeedbackRulesRecipe'):\n"
        "    r.load_recipe(name, {})\n"
        "assert not {'torch', 'transformers', 'peft'} & set(sys.modules), 'torch was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
