"""The read API."""

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from reefcommon.errors import BadConfig, Unavailable
from reefcommon.events import BodyRef
from reefcommon.settings import SystemSettings
from services.experience.http import errors_as_answers, key_routes, read_routes
from services.experience.settings import Settings
from tests.experience.conftest import Service
from tests.experience.factory import Bodies, inference, report


def client(reads: Any, bodies: Bodies | None = None) -> httpx.AsyncClient:
    app = FastAPI()
    app.middleware("http")(errors_as_answers)
    app.include_router(read_routes(reads, bodies or Bodies()))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://experience")


@pytest.mark.store
async def test_reads_of_what_was_taken(service: Service) -> None:
    records = [
        inference(record_id=f"rec-{n}", at=n, request={"messages": [], "n": 2**70})
        for n in range(3)
    ]
    aborted = inference(record_id="rec-a", at=9, outcome="aborted")
    await service.take(
        *records,
        aborted,
        report("rec-0", score=0.5, report_id="rep-0"),
        report("rec-a", report_id="rep-a"),
    )
    async with client(service.reads) as http:
        whole = await http.get("/records/rec-0")
        body = whole.json()
        assert body["record"]["request"]["n"] == 2**70
        assert (body["record"]["completions"][0]["token_ids"], body["session_turn"]) == ([4, 5], 0)
        assert body["reports"][0]["score"] == 0.5
        assert body["samples"][0]["trained_tokens"] == 2
        said = (await http.get("/records/rep-0")).json()
        assert (
            said["record"]["type"],
            said["record"]["score"],
            said["samples"][0]["record_ids"],
        ) == ("feedback.reported.v1", 0.5, ["rec-0"])
        page = (await http.get("/scenarios/default/records", params={"limit": 2})).json()
        assert [row["record_id"] for row in page["data"]] == ["rec-a", "rec-2"]
        rest = (
            await http.get(
                "/scenarios/default/records", params={"limit": 9, "cursor": page["next_cursor"]}
            )
        ).json()
        assert ([row["record_id"] for row in rest["data"]], rest["next_cursor"]) == (
            ["rec-1", "rec-0"],
            None,
        )
        for kind in ("records", "sessions", "samples", "units", "signals", "steps"):
            lost = await http.get(f"/scenarios/default/{kind}", params={"cursor": "nowhere"})
            assert (lost.status_code, lost.json()["error"]["code"]) == (400, "invalid_cursor")
        assert (
            await http.get("/scenarios/default/records", params={"cursor": "rec-0"})
        ).json() == {"data": [], "next_cursor": None}
        assert (
            len(
                (
                    await http.get("/scenarios/default/records", params={"outcome": "aborted"})
                ).json()["data"]
            )
            == 1
        )
        for trainable, record_id in ((True, "rec-0"), (False, "rec-a")):
            (sample,) = (
                await http.get("/scenarios/default/samples", params={"trainable": trainable})
            ).json()["data"]
            assert sample["record_ids"] == [record_id]
        sessions = (await http.get("/scenarios/default/sessions")).json()["data"]
        mine = (
            await http.get(
                "/scenarios/default/records", params={"session": sessions[0]["session_id"]}
            )
        ).json()["data"]
        assert {row["session_id"] for row in mine} == {sessions[0]["session_id"]}
        counts = (await http.get("/scenarios/default/summary")).json()
        assert counts["records"] == {"aborted": 1, "ok": 3}
        assert counts["samples"] == {"aborted": 1, "trainable": 1}
        assert (await http.get("/scenarios/default/steps")).json() == {
            "data": [],
            "next_cursor": None,
        }


@pytest.mark.store
async def test_a_large_body_is_put_in_where_its_record_is_read(service: Service) -> None:
    refs = {sha: BodyRef(uri="file:///x", sha256=sha * 64, size_bytes=3) for sha in "ab"}
    service.bodies.kept["a" * 64] = {"request": {"messages": []}, "response": {"id": "r"}}
    await service.take(
        *(
            inference(record_id=sha, request=None, response=None, body_ref=ref)
            for sha, ref in refs.items()
        )
    )
    async with client(service.reads, service.bodies) as http:
        there, lost = [(await http.get(f"/records/{sha}")).json()["record"] for sha in "ab"]
    assert (there["request"], there["response"]) == ({"messages": []}, {"id": "r"})
    assert (lost["request"], lost["body_ref"]["sha256"]) == (None, "b" * 64)


@pytest.mark.store
async def test_what_is_not_there_or_not_allowed(service: Service) -> None:
    async with client(service.reads) as http:
        missing = await http.get("/records/rec-0")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "record_not_found")
        assert (
            await http.get("/scenarios/default/records", params={"limit": 0})
        ).status_code == 422
        assert (await http.get("/scenarios/nobody/summary")).json()["records"] == {}
        assert (await http.get("/scenarios/default/refusals")).status_code == 404


async def test_a_store_that_is_away_is_503() -> None:
    class Away:
        async def record(self, record_id: str) -> None:
            raise Unavailable("chDB does not answer")

    async with client(Away()) as http:
        response = await http.get("/records/rec-0")
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")


class Read:
    """A log of which is known that it was handled until `until`."""

    def __init__(self, until: float) -> None:
        self.until, self.waited = until, 0

    def has_reached(self, until: float) -> bool:
        return self.until >= until

    async def reaches(self, until: float, *, within_s: float) -> bool:
        self.waited += 1
        return self.has_reached(until)


@pytest.mark.store
async def test_keys_are_found_with_their_answers(service: Service) -> None:
    answered = inference(record_id="own-1", at=1, response={"id": "x"})
    await service.take(answered, report("own-1", score=0.5, report_id="said-1"))
    app, read = FastAPI(), Read(until=5)
    app.include_router(key_routes(service.reads, read, Bodies()))  # type: ignore[arg-type]
    asked = [("own-1", 9), ("said-1", 9), ("own-2", 5), ("own-3", 9)]
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://experience") as http:
        found = await asyncio.gather(
            *(http.get(f"/keys/{key}", params={"until": until}) for key, until in asked)
        )
    own, said, known, unsure = ((one.status_code, one.json()) for one in found)
    assert (own[0], own[1]["kind"], own[1]["response"]) == (200, "inference", {"id": "x"})
    assert "id" not in own[1]
    assert (said[0], said[1]["kind"], said[1]["scenario"]) == (200, "report", "default")
    assert (known, unsure) == ((404, {"complete": True}), (404, {"complete": False}))
    assert read.waited == 1


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REEF_EXPERIENCE_URL", "http://127.0.0.1:4321")
    monkeypatch.setenv("REEF_EXPERIENCE_REPORT_WAIT_S", "5")
    settings = Settings.load()
    assert settings.report_wait_s == 5
    assert SystemSettings.load().port_of("experience") == 4321
    monkeypatch.setenv("REEF_EXPERIENCE_REPORT_WAIT_S", "soon")
    with pytest.raises(BadConfig, match="REEF_EXPERIENCE_report_wait_s"):
        Settings.load()
    monkeypatch.setenv("REEF_EXPERIENCE_RAPORT_WAIT_S", "5")
    with pytest.raises(BadConfig, match="unknown settings: REEF_EXPERIENCE_RAPORT_WAIT_S"):
        Settings.load()
