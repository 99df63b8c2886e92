"""A harness in the chats of plain clients: applied at once, recorded, kept by a session."""

from pathlib import Path
from typing import Any

import pytest

from reefcommon.artifacts import describe
from reefcommon.config import parse
from reefcommon.events import Release
from reefcommon.harness.delivery import added
from reefcommon.harness.files import write_tree
from reefcommon.harness.tree import Entry
from tests.fakes.artifacts import MemoryArtifactStore

from .conftest import CHAT, Bench, bench_of
from .fakes import release

SERVE = "reef: {recipe: 'recipes.sao.recipe:SAORecipe'}\nharness: {apply: %s}\n"


class Applied:
    """A gateway whose harness releases are rules of one text each."""

    def __init__(self, bench: Bench, store: MemoryArtifactStore, folder: Path) -> None:
        self.bench, self.store, self.folder = bench, store, folder

    def publish(self, number: int, text: str, scenario: str = "default", **fields: Any) -> Release:
        tree = self.folder / f"{scenario}-{number}"
        tree.mkdir()
        write_tree((Entry("r", "rules", {"text": text}),), tree)
        manifest = describe(tree, "harness")
        self.store.put(tree, manifest, scenario)
        contents = {"base": "base", "harness": manifest.content_id}
        row = release(scenario, number, None).model_copy(update={"contents": contents} | fields)
        self.bench.heads.chains.setdefault(scenario, []).insert(0, row)
        self.bench.gateway.scenarios.table.publish(row)
        return row

    async def sent(self, **headers: str) -> list[dict[str, Any]]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self.bench.chat(headers=named)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = self.bench.engine.requests[-1]["messages"]
        return found


async def applied(tmp_path: Path, at: str):
    store = MemoryArtifactStore()
    config = parse(SERVE % at)
    async with bench_of(artifacts=store, state_dir=tmp_path / "s", config=config) as bench:
        yield Applied(bench, store, tmp_path)


@pytest.fixture
async def system(tmp_path: Path):
    async for made in applied(tmp_path, "system_prompt"):
        yield made


@pytest.fixture
async def user_end(tmp_path: Path):
    async for made in applied(tmp_path, "user_end"):
        yield made


async def test_the_next_request_has_the_harness_and_after_a_rollback_the_old(
    system: Applied,
) -> None:
    assert await system.sent() == CHAT
    system.publish(1, "Be brief.")
    first, *rest = await system.sent()
    own = CHAT[0]["content"]
    assert first == {"role": "system", "content": f"## Rules\n- Be brief.\n\n{own}"}
    assert rest == CHAT[1:]
    system.publish(2, "Be long.")
    assert "Be long." in (await system.sent())[0]["content"]
    system.publish(3, "Be brief.")
    assert "Be brief." in (await system.sent())[0]["content"]


async def test_the_record_holds_the_clients_request_and_the_text_as_sent(
    system: Applied,
) -> None:
    made = system.publish(1, "Be brief.")
    await system.sent()
    event = system.bench.log.records[-1]
    assert event.request["messages"] == CHAT
    harness = event.harness
    assert (harness.release_id, harness.content_id) == (made.release_id, made.contents["harness"])
    sent = added(harness.text, event.request["messages"], harness.at).to(event.request["messages"])
    assert sent == system.bench.engine.requests[-1]["messages"]


async def test_a_client_may_opt_out(system: Applied) -> None:
    system.publish(1, "Be brief.")
    assert await system.sent(x_reef_harness="false") == CHAT
    assert system.bench.log.records[-1].harness is None
    answer = await system.bench.chat(headers={"x-reef-harness": "perhaps"})
    assert answer.status_code == 400


async def test_a_session_keeps_the_harness_that_it_began_with(system: Applied) -> None:
    plain = await system.sent(x_reef_tag_session="before")
    assert plain == CHAT
    system.publish(1, "Be brief.")
    first = await system.sent(x_reef_tag_session="one")
    system.publish(2, "Be long.")
    assert await system.sent(x_reef_tag_session="one") == first
    assert await system.sent(x_reef_tag_session="before") == CHAT
    assert "Be long." in (await system.sent(x_reef_tag_session="two"))[0]["content"]


async def test_the_record_has_the_load_of_the_sessions_own_harness(system: Applied) -> None:
    """A recipe for weights may refuse samples of before a skill by it."""
    system.publish(1, "Be brief.", loads={"weights": "i:0", "harness": "i:1"})
    await system.sent(x_reef_tag_session="one")
    system.publish(2, "Be long.", loads={"weights": "i:4", "harness": "i:2"})
    await system.sent(x_reef_tag_session="one")
    await system.sent(x_reef_tag_session="two")
    await system.sent()
    loads = [record.loads for record in system.bench.log.records]
    assert [row["harness"] for row in loads] == ["i:1", "i:1", "i:2", "i:2"]
    assert [row["weights"] for row in loads] == ["i:0", "i:4", "i:4", "i:4"]


async def test_after_the_last_user_message(user_end: Applied) -> None:
    user_end.publish(1, "Be brief.")
    *before, message = await user_end.sent()
    assert before == CHAT[:-1]
    assert message["content"] == f"{CHAT[-1]['content']}\n\n## Rules\n- Be brief."


async def test_other_apis_and_scenarios_are_left_alone(tmp_path: Path) -> None:
    config = parse(SERVE.replace("%s", "{other: user_end}"))
    store = MemoryArtifactStore()
    async with bench_of(artifacts=store, state_dir=tmp_path / "s", config=config) as bench:
        system = Applied(bench, store, tmp_path)
        system.publish(1, "Be brief.")
        assert await system.sent() == CHAT
        body = {"model": "reef", "prompt": "x"}
        assert (await bench.http.post("/v1/completions", json=body)).status_code == 200
        assert bench.engine.requests[-1]["prompt"] == "x"


async def test_a_harness_that_cannot_be_read_is_a_refusal_and_no_answer_without_it(
    system: Applied,
) -> None:
    made = system.publish(1, "Be brief.")
    system.store.trees.clear()
    answer = await system.bench.chat()
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "harness_unavailable"
    assert answer.headers["retry-after"] == "2"
    assert (await system.bench.chat(headers={"x-reef-harness": "false"})).status_code == 200
    assert made.sequence == 1


@pytest.mark.parametrize(
    ("harness", "says"),
    [("{apply: sideways}", "none, system_prompt, user_end"), ("{apply: [none]}", "must be")],
)
def test_a_place_that_is_none_is_refused(harness: str, says: str) -> None:
    with pytest.raises(Exception, match=says):
        parse(f"reef: {{recipe: 'a:B'}}\nharness: {harness}\n")


def test_tasks_are_judged_at_the_place_that_users_get() -> None:
    text = "reef: {recipe: 'a:B'}\nharness: {apply: user_end}\nevaluation: {tasks: [x]}\n"
    assert parse(text).evaluation.rules_at == "user_end"
    assert parse(text + "  \n").harness.at("default") == "user_end"
