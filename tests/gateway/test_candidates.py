"""Candidates over HTTP: checked, stored, and proposed once."""

import base64
from pathlib import Path

import pytest

from reefcommon import topics
from reefcommon.events import CandidateProposed
from reefcommon.harness.files import files_to_tree, tree_to_files
from reefcommon.harness.tree import Entry
from tests.fakes.artifacts import MemoryArtifactStore

from .conftest import Bench, bench_of

TREE = (Entry("brief", "rules", {"text": "Be brief."}),)
PATH = "/reef/scenarios/default/candidates"


def encoded(files: dict[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(data).decode() for name, data in files.items()}


HARNESS = {"kind": "harness", "files": encoded(tree_to_files(TREE))}


@pytest.fixture
async def bench(tmp_path: Path):
    store = MemoryArtifactStore()
    async with bench_of(artifacts=store, state_dir=tmp_path / "state") as made:
        made.store = store  # type: ignore[attr-defined]
        yield made


def proposed(bench: Bench) -> list[CandidateProposed]:
    return [
        CandidateProposed.model_validate_json(data)
        for topic, data, _ in bench.log.appended
        if topic == topics.CANDIDATES.name
    ]


async def test_a_harness_is_stored_and_proposed(bench: Bench) -> None:
    body = {**HARNESS, "recipe": "mine", "metrics": {"x": 1.5}, "reason": "made elsewhere"}
    answers = [await bench.http.post(PATH, json=body) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202], answers[0].text
    first, second = proposed(bench)
    assert answers[0].json()["candidate_id"] == first.event_id == second.event_id
    assert (first.kind, first.lineage.recipe, first.metrics) == ("harness", "mine", {"x": 1.5})
    assert first.base_release_id == bench.heads.chains["default"][0].release_id
    _, files = bench.store.trees["default", first.content_id]  # type: ignore[attr-defined]
    assert files_to_tree(files) == TREE


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"files": encoded({"../x": b"1"})}, "not a path"),
        ({"files": encoded({"/etc/x": b"1"})}, "not a path"),
        ({"files": encoded({"a\nb": b"1"})}, "not a path"),
        ({"files": encoded({"d/" * 1500 + "x": b"1"})}, "folders deep"),
        ({"files": encoded({f"{n}/" * 11 + "x": b"1" for n in range(1000)})}, "slashes in all"),
        ({"metrics": {"k" * 101: 1.0}}, "metrics"),
        ({"metrics": {"\x1b[31m": 1.0}}, "metrics"),
        ({"files": {"a": "no base64!"}}, "no base64"),
        ({"files": encoded({"harness.json": b"{}"})}, "not a harness"),
        ({"files": encoded({**tree_to_files(TREE), "more": b"1"})}, "are not those"),
        ({"files": {}}, "at least 1"),
        ({"kind": "lora"}, "adapter_model.safetensors"),
        ({"kind": "checkpoint"}, "kind"),
        ({"reason": "token=abcdefgh12345678"}, "credential"),
    ],
)
async def test_h2_what_is_no_candidate_is_refused(bench: Bench, change: dict, says: str) -> None:
    """H2."""
    answer = await bench.http.post(PATH, json={**HARNESS, **change})
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]
    assert proposed(bench) == []
    assert bench.store.trees == {}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (Entry("r", "rules", {"text": "password: hunter2hunter2"}), "credential"),
        (Entry("c", "code_extension", {"name": "c", "text": "export default 1;"}), "isolated"),
    ],
)
async def test_h1_h5_a_harness_is_admitted_first(bench: Bench, entry: Entry, says: str) -> None:
    """H1, H5. And its text is not repeated."""
    files = encoded(tree_to_files((entry,)))
    answer = await bench.http.post(PATH, json={**HARNESS, "files": files})
    assert (answer.status_code, says in answer.text, "hunter2" in answer.text) == (400, True, False)


async def test_the_base_must_be_a_release(bench: Bench) -> None:
    answer = await bench.http.post(PATH, json={**HARNESS, "base_release_id": "rel-x"})
    assert answer.json()["error"]["code"] == "release_not_found"
    bench.log.broken = True
    assert (await bench.http.post(PATH, json=HARNESS)).status_code == 503
