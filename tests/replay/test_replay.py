"""Everything can be rebuilt: the log read again gives what the running system has, and where it does not, the row and the field are named."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner

from reefcli.commands.replay import check_place
from reefcli.errors import CommandFailed
from reefcli.main import cli
from reefcommon import topics
from reefcommon.settings import SystemSettings
from reefkit.redis_heads import connect
from reefstack.embedded import Options, embedded_stack
from services.experience.app import build
from services.experience.clickhouse import Database
from services.experience.settings import Settings
from tests.experience.test_broker import read_all, until
from tests.gateway.conftest import serving
from tests.replay.system import CONFIG, ENV, System
from tests.replay.traffic import Traffic, fill

pytestmark = [pytest.mark.broker, pytest.mark.store, pytest.mark.redis]


@contextlib.asynccontextmanager
async def here(state_dir: Path) -> AsyncIterator[System]:
    """A broker and Redis of this test's own, with the topics."""
    options = Options(only=frozenset({"kafka", "redis"}), memory_broker=True, default_ports=False)
    async with embedded_stack(CONFIG, state_dir, options) as stack:
        yield System(stack, state_dir)


@contextlib.asynccontextmanager
async def experience(system: System) -> AsyncIterator[Database]:
    """The service in this process, where its store can be tampered with."""
    database = Database.embedded(system.state_dir / "chdb")
    bus = SystemSettings(kafka_bootstrap=system.stack.kafka_bootstrap, state_dir=system.state_dir)
    app = build(bus, Settings(report_wait_s=2, sweep_every_s=0.3), database=database)
    async with serving(app) as url:
        system.stack.urls["experience"] = url
        yield database


async def caught_up(system: System, database: Database, reports: int) -> None:
    """Everything is handled, and every report has been joined or given up."""

    async def none_waits() -> bool:
        await asyncio.sleep(0.4)  # a query of the store costs CPU
        if database.away:
            return False
        found = await database.query(
            "SELECT count() AS n, countIf(state = 'parked') AS waiting FROM reports FINAL"
        )
        return bool(found[0]["n"] >= reports and not found[0]["waiting"])

    await system.idle()
    await until(none_waits)


def places(system: System) -> tuple[str, ...]:
    urls = system.stack.urls
    return (
        "--bootstrap",
        system.stack.kafka_bootstrap,
        "--redis",
        system.stack.redis_url,
        "--experience",
        urls["experience"],
    )


async def change(database: Database, sql: str) -> None:
    await database._run(lambda client: client.command(f"{sql} SETTINGS mutations_sync = 2"))


async def killed_on_its_way(system: System) -> None:
    """Begin a replay, and end it with `kill -9` when it has handled some of the log."""
    env = {
        **os.environ,
        **ENV,
        "REEF_EXPERIENCE_BATCH_RECORDS": "40",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with (system.state_dir / "first.log").open("wb") as log:
        child = await asyncio.create_subprocess_exec(
            *system.command(*places(system)), env=env, stdout=log, stderr=log
        )

    async def on_its_way() -> bool:
        if child.returncode is not None:
            raise AssertionError((system.state_dir / "first.log").read_text())
        kept = list((system.state_dir / "replay").glob("*.json"))
        return (
            bool(kept)
            and sum(offset for _, _, offset in orjson.loads(kept[0].read_bytes())["positions"])
            > 200
        )

    try:
        await until(on_its_way)
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGKILL)
        await child.wait()


async def test_a_replay_is_equal_and_a_planted_difference_is_named(tmp_path: Path) -> None:
    """2,000 events of every kind, read again by a replay that is killed once: equal. Then one field, one row too few, one too many and a
    release are changed behind the system's back."""
    async with here(tmp_path) as system, experience(system) as database:
        sent = await system.fill(2000)
        await caught_up(system, database, 300)
        await killed_on_its_way(system)
        code, found, said = await system.replay(*places(system))
        assert (code, found.get("different"), found.get("differences")) == (0, {}, []), said
        assert 200 < found["resumed_at"] < found["events"] == sent
        assert found["rows"]["records"] > 1000
        assert not (tmp_path / "replay").exists(), "nothing is left behind"
        samples = len(await read_all(system.stack.kafka_bootstrap, topics.SAMPLES.name))
        assert samples == found["rows"]["samples"], "a replay sends nothing"

        (one,) = await database.query(
            "SELECT record_id FROM records FINAL ORDER BY record_id LIMIT 1 OFFSET 500"
        )
        (two,) = await database.query(
            "SELECT sample_id FROM samples FINAL ORDER BY sample_id LIMIT 1 OFFSET 50"
        )
        (three,) = await database.query(
            "SELECT refusal_id FROM refusals FINAL ORDER BY refusal_id LIMIT 1"
        )
        await change(
            database,
            f"ALTER TABLE records UPDATE session_turn = 77 WHERE record_id = '{one['record_id']}'",
        )
        await change(database, f"ALTER TABLE samples DELETE WHERE sample_id = '{two['sample_id']}'")
        await change(
            database,
            f"ALTER TABLE refusals UPDATE lag = NULL WHERE refusal_id = '{three['refusal_id']}'",
        )
        await database.insert(
            "refusals",
            ["refusal_id", "scenario", "at", "recipe", "sample_id", "reason"],
            [["ref-x"], ["default"], [0], ["sao"], ["s"], ["r"]],
        )
        redis = connect(system.stack.redis_url)
        chain = await redis.lrange("reef:{coding}:chain", 0, 0)
        await redis.lpop("reef:{coding}:chain")
        await redis.aclose()

        more = asyncio.create_task(
            fill(system.stack.kafka_bootstrap, Traffic(300, seed=7), releases=False)
        )  # the system goes on meanwhile
        code, found, said = await system.replay(*places(system))
        await more
        assert code == 3, said
        differences = {
            (row["table"], row["id"]): row
            for row in found["differences"]
            if row["table"] != "heads"
        }
        assert differences.keys() == {
            ("records", one["record_id"]),
            ("samples", two["sample_id"]),
            ("refusals", three["refusal_id"]),
            ("refusals", "ref-x"),
        }
        assert set(differences["records", one["record_id"]]["fields"]) == {"session_turn"}
        assert differences["records", one["record_id"]]["fields"]["session_turn"]["running"] == "77"
        assert differences["samples", two["sample_id"]]["kind"] == "missing"
        assert differences["refusals", "ref-x"]["kind"] == "extra"
        assert f"coding chain: {chain[0]}" in {
            row["id"] for row in found["differences"] if row["table"] == "heads"
        }


async def test_a_lost_store_is_replaced_and_the_service_goes_on_from_there(tmp_path: Path) -> None:
    """Stop, replay into, start: nothing is missing, and no sample is sent twice or not at all."""
    async with here(tmp_path) as system:
        async with experience(system) as database:
            await system.fill(600, seed=1)
            await caught_up(system, database, 80)
        await fill(
            system.stack.kafka_bootstrap, Traffic(200, seed=2), releases=False
        )  # comes while the service is down
        shutil.rmtree(tmp_path / "chdb")
        into = str(tmp_path / "chdb")
        code, found, said = await system.replay("--into", into, *places(system))
        assert (code, found["compared"]) == (0, False), said
        assert found["rows"] == {}
        async with experience(system) as database:
            await caught_up(system, database, 100)
            code, found, said = await system.replay(*places(system))
            assert (code, found["different"]) == (0, {}), said
            sent = [
                orjson.loads(value)["event_id"]
                for value in await read_all(system.stack.kafka_bootstrap, topics.SAMPLES.name)
            ]
            assert len(sent) == len(set(sent)) == found["rows"]["samples"]


def test_what_cannot_be_carried_out_says_what_to_do(tmp_path: Path, redis_url: str) -> None:
    here = ("--state-dir", str(tmp_path))
    for words, said in (
        (here, "no Reef runs on"),
        ((*here, "--bootstrap", "127.0.0.1:9"), "or name --redis, --experience"),
        (
            (
                *here,
                "--bootstrap",
                "127.0.0.1:9",
                "--redis",
                redis_url,
                "--experience",
                "http://127.0.0.1:9",
            ),
            "no experience service answers at http://127.0.0.1:9",
        ),
        (
            (*here, "--bootstrap", "127.0.0.1:9", "--into", str(tmp_path / "new")),
            "no broker answers at 127.0.0.1:9",
        ),
    ):
        result = CliRunner().invoke(cli, ["replay", *words])
        assert (result.exit_code, said in result.output) == (1, True), result.output
    foreign = tmp_path / "foreign"
    for part in ("metadata", "store"):  # names that others use too
        (foreign / part).mkdir(parents=True)
    (foreign / "notes.txt").write_text("precious")
    for more in ((), ("--fresh",)):
        refused = CliRunner().invoke(
            cli, ["replay", *here, "--bootstrap", "127.0.0.1:9", "--into", str(foreign), *more]
        )
        assert (
            refused.exit_code,
            "holds other things than a store" in refused.output.replace("\n", " "),
        ) == (1, True), refused.output
    assert (foreign / "notes.txt").read_text() == "precious"
    shown = CliRunner().invoke(cli, ["replay", "--help"]).output
    assert "reef replay --into" in shown


def test_a_store_in_the_making_is_a_replays_own_and_nothing_else_is(tmp_path: Path) -> None:
    """Killed while the store was made or removed, the next replay goes on with what is left of it; files of others stay."""
    place = tmp_path / "new"
    check_place(place, begun=False)
    (place / "store").mkdir(parents=True)
    check_place(place, begun=True)
    with pytest.raises(CommandFailed, match="other things than a store"):
        check_place(place, begun=False)
    (place / "notes.txt").touch()
    with pytest.raises(CommandFailed, match="other things than a store"):
        check_place(place, begun=True)
