"""The harness over HTTP: the tree that serves, its changes, and the script that installs it."""

import base64
from pathlib import Path

import pytest

from reefcommon.artifacts import describe
from reefcommon.harness.files import write_tree
from reefcommon.harness.tree import Entry, Tree
from tests.fakes.artifacts import MemoryArtifactStore

from .conftest import Bench, bench_of
from .fakes import release

TREE = (Entry("brief", "rules", {"text": "Be brief."}),)


def published(bench: Bench, tmp_path: Path, tree: Tree, number: int) -> str:
    folder = tmp_path / f"tree-{number}"
    folder.mkdir()
    write_tree(tree, folder)
    manifest = describe(folder, "harness")
    bench.store.put(folder, manifest, "default")  # type: ignore[attr-defined]
    row = release("default", number, None).model_copy(
        update={
            "kind": "harness",
            "content_id": manifest.content_id,
            "contents": {"base": "base", "harness": manifest.content_id},
            "reason": f"change {number}",
        }
    )
    bench.heads.chains["default"].insert(0, row)
    return manifest.content_id


@pytest.fixture
async def bench(tmp_path: Path):
    store = MemoryArtifactStore()
    async with bench_of(artifacts=store, state_dir=tmp_path / "state") as made:
        made.store = store  # type: ignore[attr-defined]
        yield made


async def test_without_a_release_of_it_the_harness_is_empty(bench: Bench) -> None:
    body = (await bench.http.get("/reef/harness")).json()
    assert (body["entries"], body["content_id"]) == ([], "")
    assert (await bench.http.get("/reef/harness/releases")).json() == {"data": [], "pending": []}


async def test_the_tree_that_serves_and_its_changes(bench: Bench, tmp_path: Path) -> None:
    first = published(bench, tmp_path, TREE, 1)
    weights = bench.heads.chains["default"][0].model_copy(
        update={"release_id": "rel-w", "kind": "lora", "sequence": 2}
    )
    bench.heads.chains["default"].insert(0, weights)
    second = published(bench, tmp_path, (*TREE, Entry("m", "memory", {"text": "Port 1."})), 3)
    body = (await bench.http.get("/reef/harness")).json()
    assert [entry["id"] for entry in body["entries"]] == ["brief", "m"]
    rows = (await bench.http.get("/reef/harness/releases")).json()["data"]
    assert [row["content_id"] for row in rows] == [second, first]
    assert rows[0]["reason"] == "change 3"
    (row,) = (await bench.http.get("/reef/harness/releases?limit=1")).json()["data"]
    assert row["content_id"] == second


async def test_h4_a_pending_release_is_told_and_not_served(bench: Bench, tmp_path: Path) -> None:
    """H4. Head, tree and plan stay; people read that it waits."""
    content = published(bench, tmp_path, TREE, 1)
    head = bench.heads.chains["default"][0]
    urls = ("/reef/harness", "/reef/harness/plan?adapter=pi")
    before = [(await bench.http.get(url)).json() for url in urls]
    waiting = head.model_copy(update={"release_id": "rel-p", "content_id": "h-2", "sequence": 2})
    weights = waiting.model_copy(update={"release_id": "rel-w", "kind": "lora"})
    bench.heads.waiting["default"] = [waiting, weights]
    assert [(await bench.http.get(url)).json() for url in urls] == before
    found = (await bench.http.get("/reef/harness/releases")).json()
    assert [row["content_id"] for row in found["data"]] == [content]
    assert [row["release_id"] for row in found["pending"]] == ["rel-p"]
    heads = (await bench.http.get("/reef/status")).json()["heads"]
    assert heads["default"]["pending"] == ["rel-w", "rel-p"]
    assert heads["slow"]["pending"] == []


async def test_the_plan_holds_the_files_and_the_callers_address(
    bench: Bench, tmp_path: Path
) -> None:
    content = published(bench, tmp_path, TREE, 1)
    proxy = {"x-forwarded-proto": "https", "x-forwarded-host": "reef.example:8443, inner"}
    url = "/reef/harness/plan?adapter=pi"
    plan = (await bench.http.get(url, headers=proxy)).json()
    assert (plan["url"], plan["content"]) == ("https://reef.example:8443", content)
    assert base64.b64decode(plan["files"]["AGENTS.md"]) == b"Be brief.\n"
    assert not plan["needs_token"]
    for host in ("x'; rm -rf", "a b", "user@host"):
        answer = await bench.http.get(url, headers={"x-forwarded-host": host})
        assert answer.status_code == 400


async def test_the_script_comes_as_text(bench: Bench, tmp_path: Path) -> None:
    published(bench, tmp_path, TREE, 1)
    answer = await bench.http.get("/reef/harness/install?adapter=pi")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/x-shellscript")
    assert answer.text.startswith("#!/bin/sh")
    assert answer.text.rstrip().endswith("}")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("adapter=none", "there are: claude-code, codex, pi"),
        ("adapter=os", "there are: claude-code, codex, pi"),
        ("adapter=pi&scenario=other", "404"),
        ("adapter=pi&scenario=../x", "400"),
    ],
)
async def test_a_refusal_of_the_script_is_a_script(bench: Bench, query: str, says: str) -> None:
    answer = await bench.http.get(f"/reef/harness/install?{query}")
    assert answer.status_code == 200
    assert answer.text.startswith("#!/bin/sh")
    assert says in answer.text
    assert "exit 1" in answer.text


async def test_a_tree_that_the_agent_cannot_have_is_refused(bench: Bench, tmp_path: Path) -> None:
    code = {"name": "x", "text": "export default 1;"}
    published(bench, tmp_path, (Entry("c", "code_extension", code),), 1)
    answer = await bench.http.get("/reef/harness/plan?adapter=pi")
    assert answer.status_code == 409
    assert "pi" in answer.json()["error"]["message"]


async def test_the_agents_are_listed(bench: Bench) -> None:
    rows = (await bench.http.get("/reef/harness/adapters")).json()["data"]
    assert "pi" in [row["name"] for row in rows]
