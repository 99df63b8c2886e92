"""The files of releases: listed and handed out, of one's own scenario only."""

import hashlib
from pathlib import Path

import pytest

from reefcommon.artifacts import describe
from tests.fakes.artifacts import MemoryArtifactStore

from .conftest import Bench, bench_of
from .fakes import release

PROGRAM = b"print('packed')\n"
BASE = "/reef/scenarios/default/releases"


@pytest.fixture
async def bench(tmp_path: Path):
    store = MemoryArtifactStore()
    tree = tmp_path / "tree"
    (tree / "src").mkdir(parents=True)
    (tree / "src/best.py").write_bytes(PROGRAM)
    (tree / "score.json").write_text("2.5")
    manifest = describe(tree, "solution", metrics={"score": 2.5})
    store.put(tree, manifest, "default")
    async with bench_of(artifacts=store, state_dir=tmp_path / "state") as made:
        contents = {"base": "base", "solution": manifest.content_id}
        row = release("default", 1, None).model_copy(
            update={"kind": "solution", "content_id": manifest.content_id, "contents": contents}
        )
        made.heads.chains["default"].insert(0, row)
        yield made


async def test_files_are_listed_with_their_digests(bench: Bench) -> None:
    answer = await bench.http.get(f"{BASE}/rel-default-1/contents/solution")
    body = answer.json()
    assert (body["kind"], body["metrics"]) == ("solution", {"score": 2.5})
    row = next(row for row in body["files"] if row["path"] == "src/best.py")
    assert row["sha256"] == hashlib.sha256(PROGRAM).hexdigest()
    assert row["size_bytes"] == len(PROGRAM)


async def test_a_file_comes_as_bytes_that_no_browser_shows(bench: Bench) -> None:
    url = f"{BASE}/rel-default-1/contents/solution/src/best.py"
    answer = await bench.http.get(url)
    assert answer.content == PROGRAM
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment"
    again = await bench.http.get(url, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("rel-default-9/contents/solution", "no release"),
        ("rel-default-1/contents/harness", "it has: solution"),
        ("rel-default-1/contents/base", "it has: solution"),
        ("rel-default-0/contents/solution", "it has: none"),
        ("rel-default-1/contents/solution/other.py", "no file"),
        ("rel-default-1/contents/solution/../../state", ""),
        ("rel-default-1/contents/solution/%2e%2e/%2e%2e/etc/passwd", ""),
    ],
)
async def test_other_files_are_not_found(bench: Bench, path: str, says: str) -> None:
    answer = await bench.http.get(f"{BASE}/{path}")
    assert answer.status_code == 404
    assert says in answer.json()["error"]["message"]


async def test_an_unknown_kind_is_refused(bench: Bench) -> None:
    answer = await bench.http.get(f"{BASE}/rel-default-1/contents/poem")
    assert answer.status_code == 400


async def test_a_content_that_is_gone_says_so(bench: Bench, tmp_path: Path) -> None:
    chain = bench.heads.chains["default"]
    gone = {"base": "base", "solution": "solution-" + "0" * 32}
    chain.insert(0, release("default", 2, None).model_copy(update={"contents": gone}))
    answer = await bench.http.get(f"{BASE}/rel-default-2/contents/solution")
    assert (answer.status_code, "gone" in answer.text) == (404, True)
