"""A routing policy at the gateway: at once, the same on all gateways, the head if a release lacks."""

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from reefcommon.artifacts import describe
from reefcommon.errors import Unavailable
from reefcommon.events import Release, ReleasePublished
from reefcommon.routing import RoutingPolicy, write_policy
from tests.fakes.artifacts import MemoryArtifactStore

from .conftest import Bench, bench_of
from .fakes import release
from .stub_engine import StubEngine


class Canary:
    """A gateway whose chain is: the base model, an adapter, then policies over the two."""

    def __init__(self, bench: Bench, store: MemoryArtifactStore, folder: Path) -> None:
        self.bench, self.store, self.folder = bench, store, folder
        self.chain = bench.heads.chains["default"]
        self.head = self.put(1, adapter="default@rel-default-1")

    def put(self, number: int, adapter: str | None, **contents: str) -> Release:
        row = release("default", number, adapter)
        row = row.model_copy(update={"contents": {"base": "base", **contents}})
        self.chain.insert(0, row)
        self.bench.gateway.scenarios.table.publish(row)
        return row

    def policy(self, **fields: Any) -> Release:
        number = self.chain[0].sequence + 1
        (tree := self.folder / str(number)).mkdir()
        write_policy(RoutingPolicy.model_validate(fields), tree)
        content = self.store.put(tree, describe(tree, "routing"), "default")
        return self.put(number, self.chain[0].adapter, routing=content)

    async def asked(self, **headers: str) -> tuple[str, str]:
        """The release that answered, and the model that its node was asked for."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.bench.chat(headers=named)
        assert answer.status_code == 200, answer.text
        return answer.headers["x-reef-release-id"], self.bench.engine.requests[-1]["model"]

    async def shared(self, number: int = 200) -> Counter[str]:
        tags = [{"x_reef_tag_session": f"s-{i}"} for i in range(number)]
        return Counter([(await self.asked(**tag))[0] for tag in tags])


@contextlib.asynccontextmanager
async def canary_on(tmp_path: Path, stub: StubEngine | None = None):
    store = MemoryArtifactStore()
    async with bench_of(artifacts=store, state_dir=tmp_path / "s", stub=stub) as bench:
        yield Canary(bench, store, tmp_path)


@pytest.fixture
async def canary(tmp_path: Path):
    async with canary_on(tmp_path) as made:
        yield made


OLD, NEW = "rel-default-0", "rel-default-1"


async def test_the_next_request_is_shared_and_a_session_stays(canary: Canary) -> None:
    assert await canary.shared(20) == {NEW: 20}
    made = canary.policy(shares={OLD: 0.5})
    first = await canary.shared()
    assert set(first) == {OLD, made.release_id}
    assert 60 < first[OLD] < 140
    shown = (await canary.bench.http.get("/reef/status")).json()["heads"]["default"]["traffic"]
    assert shown == {name: {"share": 0.5, "rules": []} for name in (OLD, made.release_id)}
    for session in ("s-1", "s-2", "s-3"):
        answered = {await canary.asked(x_reef_tag_session=session) for _ in range(5)}
        assert len(answered) == 1
    canary.policy()
    assert set(await canary.shared(20)) == {"rel-default-3"}


async def test_the_record_and_the_node_have_the_release_that_was_chosen(canary: Canary) -> None:
    canary.policy(shares={OLD: 1.0})
    assert await canary.asked() == (OLD, "reef")
    record = canary.bench.log.records[-1]
    assert (record.release_id, record.load_id) == (OLD, canary.chain[-1].load_id)
    canary.policy(shares={NEW: 1.0})
    assert await canary.asked() == (NEW, "default@rel-default-1")


async def test_a_rule_by_tag_wins_over_shares_and_a_pin_over_both(canary: Canary) -> None:
    rule = {"tag": "client", "value": "beta", "release": OLD}
    made = canary.policy(shares={NEW: 1.0}, rules=[rule])
    assert (await canary.asked(x_reef_tag_client="beta"))[0] == OLD
    assert (await canary.asked(x_reef_tag_client="other"))[0] == NEW
    pinned = await canary.asked(x_reef_tag_client="beta", x_reef_release_id=made.release_id)
    assert pinned[0] == made.release_id


async def test_two_gateways_and_one_after_a_restart_send_sessions_alike(
    canary: Canary, tmp_path: Path
) -> None:
    canary.policy(shares={OLD: 0.3})
    before = {s: (await canary.asked(x_reef_tag_session=s))[0] for s in map(str, range(60))}
    (tmp_path / "other").mkdir()
    async with canary_on(tmp_path / "other") as other:
        other.policy(shares={OLD: 0.3})
        after = {s: (await other.asked(x_reef_tag_session=s))[0] for s in before}
    assert before == after
    assert len(set(before.values())) == 2


async def test_a_release_that_waits_is_tried_and_no_load_of_it_is_recorded(canary: Canary) -> None:
    """Its load is decided when it is promoted; until then another may take the number."""
    waiting = release("default", 9, "default@rel-default-9")
    await canary.bench.heads.put_pending(waiting)
    canary.policy(shares={"rel-default-9": 1.0})
    assert await canary.asked() == ("rel-default-9", "default@rel-default-9")
    record = canary.bench.log.records[-1]
    assert (record.release_id, record.load_id, record.loads) == ("rel-default-9", None, {})


async def test_sessions_of_a_release_that_no_node_holds_get_the_head_and_status_says_so(
    canary: Canary,
) -> None:
    gone = release("default", 9, "absent")
    await canary.bench.heads.put_pending(gone)
    made = canary.policy(shares={"rel-default-9": 1.0, "none": 0.0})
    assert await canary.asked() == (made.release_id, "default@rel-default-1")
    record = canary.bench.log.records[-1]
    assert (record.release_id, record.outcome) == (made.release_id, "ok")
    status = (await canary.bench.http.get("/reef/status")).json()["services"]["gateway"]
    assert status["not_routed"]["default"] == {
        "rel-default-9": "no serving node holds it",
        "none": "there is no such release",
    }


async def test_a_policy_that_cannot_be_read_leaves_all_to_the_head(canary: Canary) -> None:
    made = canary.policy(shares={OLD: 1.0})
    canary.store.trees.clear()
    assert (await canary.asked())[0] == made.release_id
    rows = (await canary.bench.http.get("/reef/releases")).json()["data"]
    (row,) = [row for row in rows if row["scenario"] == "default"]
    assert row["traffic"] == [{"release_id": made.release_id, "share": 1.0, "rules": []}]
    assert "policy" in row["not_routed"]


async def test_the_releases_say_who_gets_what(canary: Canary) -> None:
    rule = {"tag": "client", "value": "beta", "release": OLD}
    made = canary.policy(shares={NEW: 0.25}, rules=[rule])
    rows = (await canary.bench.http.get("/reef/scenarios/default/releases")).json()["data"]
    assert {row["release_id"]: row["traffic"] for row in rows} == {
        made.release_id: {"share": 0.75, "rules": []},
        NEW: {"share": 0.25, "rules": []},
        OLD: {"share": 0.0, "rules": [{"tag": "client", "value": "beta"}]},
    }
    rows = (await canary.bench.http.get("/reef/releases")).json()["data"]
    (row,) = [row for row in rows if row["scenario"] == "default"]
    assert row["head"] == made.release_id
    assert [gets["release_id"] for gets in row["traffic"]] == [made.release_id, NEW, OLD]


async def test_a_policy_by_http_is_a_candidate(canary: Canary) -> None:
    body = {"shares": {OLD: 0.1}, "reason": "try the old"}
    news = {"event_id": NEW, "at": canary.head.created_at, "scenario": "default"}
    canary.bench.commands.answers = [ReleasePublished(**news, release=canary.head)]
    answer = await canary.bench.http.post("/reef/scenarios/default/routing", json=body)
    assert answer.status_code == 200, answer.text
    (candidate,) = canary.bench.commands.sent
    assert (candidate.kind, candidate.reason) == ("routing", "try the old")
    assert candidate.base_release_id == NEW
    assert ("default", candidate.content_id) in canary.store.trees
    for wrong in ({"shares": {OLD: 1.5}}, {"shares": {OLD: 0.6, NEW: 0.6}}, {"share": {}}):
        answer = await canary.bench.http.post("/reef/scenarios/default/routing", json=wrong)
        assert answer.status_code == 400, answer.text


async def test_a_store_that_is_away_moves_no_session(
    canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that is gone makes the gateway look again; a new head keeps the same policy."""
    made = canary.policy(shares={OLD: 0.5, "gone": 0.1})
    before = {i: (await canary.asked(x_reef_tag_session=f"s-{i}"))[0] for i in range(12)}
    assert set(before.values()) == {OLD, made.release_id}
    monkeypatch.setattr("services.gateway.upstream.routing.AGAIN_S", 0.0)
    reads = 0

    async def away(_scenario: str) -> list[Release]:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0.05)
        raise Unavailable("away, as asked")

    canary.bench.heads.pending = away  # type: ignore[method-assign]
    newer = canary.put(3, made.adapter, routing=made.contents["routing"])
    kept = {i: (await canary.asked(x_reef_tag_session=f"s-{i}"))[0] for i in range(12)}
    assert kept == {i: OLD if was == OLD else newer.release_id for i, was in before.items()}
    status = (await canary.bench.http.get("/reef/status")).json()["services"]["gateway"]
    assert "away" in status["not_routed"]["default"]["policy"]


async def test_requests_at_once_read_a_policy_once(canary: Canary) -> None:
    canary.policy(shares={OLD: 0.5})
    reads, pending = 0, canary.bench.heads.pending

    async def counted(scenario: str) -> list[Release]:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0.05)
        return await pending(scenario)

    canary.bench.heads.pending = counted  # type: ignore[method-assign]
    await asyncio.gather(*(canary.asked(x_reef_tag_session=f"s-{i}") for i in range(20)))
    assert reads == 1


async def test_a_folder_in_place_of_a_policy_leaves_all_to_the_head(canary: Canary) -> None:
    (tree := canary.folder / "odd").mkdir()
    (tree / "routing.json").mkdir()
    (tree / "routing.json/x").write_text("x")
    content = canary.store.put(tree, describe(tree, "routing"), "default")
    made = canary.put(2, canary.chain[0].adapter, routing=content)
    assert (await canary.asked())[0] == made.release_id
