"""Every HTTP client says whether the proxies of the shell count. If it says nothing, httpx takes them even for a program on
this machine, and refuses any work if one of them speaks SOCKS."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = {
    "httpx.AsyncClient": "trust_env",
    "httpx.Client": "trust_env",
    "openai.DefaultAsyncHttpxClient": "trust_env",
    "openai.AsyncOpenAI": "http_client",
    "openai.OpenAI": "http_client",
}


def silent(source: str) -> Iterator[int]:
    """The lines that make a client without a word on it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            wanted = NAMES.get(ast.unparse(node.func))
            if wanted is not None and wanted not in {word.arg for word in node.keywords}:
                yield node.lineno


def test_a_client_without_a_word_is_seen() -> None:
    assert list(silent("import httpx\nhttpx.AsyncClient(timeout=1)")) == [2]
    assert list(silent("import openai\nopenai.AsyncOpenAI(base_url=url)")) == [2]
    assert not list(silent("import httpx\nhttpx.Client(trust_env=False)"))


def test_every_client_says_whether_proxies_count() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("libs", "services", "recipes")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in silent(path.read_text())
    ]
    assert not found
