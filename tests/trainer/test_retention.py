"""What the trainer forgets, and that forgetting never makes anything train twice, nor takes what is still of use."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest

from reefcommon.ids import record_times_ms, time_ordered_hex
from reefcommon.settings import HostSettings
from reefkit.jobs.retention import RejectedContents, Retention
from services.trainer.child import bound_log
from tests.recipes.samples import sample
from tests.trainer.rig import AT, Rig, release

DAY_S = 24 * 3600
T0 = datetime(2026, 1, 1, tzinfo=UTC)


def receipt(day: float, number: int = 0) -> str:
    """A receipt that was made so many days after T0."""
    return f"rec-{time_ordered_hex(int((T0.timestamp() + day * DAY_S) * 1000), bytes([number] * 10))}-0a0b"


class Heads:
    """ReleaseHeads as far as they are asked."""

    def __init__(self, *contents: str, pending: tuple[str, ...] = ()) -> None:
        self.contents, self.waiting = contents, pending
        self.limits: list[int] = []

    async def chain(self, scenario, *, limit=100):
        self.limits.append(limit)
        return [release(9 - number, content) for number, content in enumerate(self.contents)]

    async def pending(self, scenario):
        return [release(99, content) for content in self.waiting]


class Dropping:
    """ArtifactStore that remembers what was dropped."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def drop(self, contents, scenario):
        self.dropped += contents


@pytest.fixture
async def rig(tmp_path):
    made = Rig(tmp_path)
    await made.publish(5)
    yield made
    await made.stop()


def retention(
    rig: Rig, now: datetime, heads: Heads | None = None, store: Dropping | None = None
) -> Retention:
    rejected = RejectedContents(
        rig.store, store or Dropping(), heads or Heads("base"), rig.kit.storing
    )
    settings = HostSettings(settled_kept_s=30 * DAY_S, rejected_kept_s=7 * DAY_S)
    return Retention("trainer", rig.handlers.loops, rig.trees, rejected, settings, lambda: now)


async def step(
    rig: Rig, day: float, first: int, *, publish: int | None = None, load: str = "run:5"
) -> str:
    """One job of two samples of that day. Returns its candidate's content."""
    for number in (first, first + 1):
        await rig.handlers.on_unit(sample(number, record_ids=(receipt(day, number),), load_id=load))
    await rig.settle()
    candidate = rig.bus.candidates[-1]
    if publish is not None:
        await rig.publish(publish, candidate.content_id, candidate=candidate.event_id)
    else:
        await rig.reject(candidate.event_id)
    return candidate.content_id


def rows(rig: Rig, table: str) -> int:
    return rig.store._rows(f"select count(*) from {table}")[0][0]


async def test_settled_work_is_forgotten_and_its_samples_are_refused_when_they_come_again(rig):
    await step(rig, 0, 0, publish=6)
    for number in range(1, 5):  # kept_states is 2: the first job's state is no longer on disk
        await step(rig, 1 + number, 10 * number, publish=6 + number, load=f"run:{5 + number}")
    assert (await retention(rig, T0 + timedelta(days=20)).round())["jobs"] == 0
    gone = await retention(rig, T0 + timedelta(days=31)).round()
    assert (gone["jobs"], gone["samples"]) == (1, 2)
    trained = [sample_id for job in rig.bus.steps for sample_id in job.sample_ids]
    again = sample(0, record_ids=(receipt(0, 0),), load_id="run:10")
    other = sample(
        77, record_ids=(receipt(0, 1), receipt(40, 9)), load_id="run:10"
    )  # another report on a record that was trained on
    new = sample(78, record_ids=(receipt(41, 9),), load_id="run:10")
    for arrived in (again, other, new):
        await rig.handlers.on_unit(arrived)
    await rig.settle()
    assert {(r.sample_id, r.reason) for r in rig.bus.refusals} == {
        ("smp-0", "too_old"),
        ("smp-77", "too_old"),
    }
    assert [sample_id for job in rig.bus.steps for sample_id in job.sample_ids] == trained
    assert rig.store.counts("samples", rig.key)["waiting"] == 1, (
        "what is newer than the horizon waits as ever"
    )


async def test_nothing_that_is_of_use_is_forgotten(rig):
    far = T0 + timedelta(days=365)
    await rig.handlers.on_unit(sample(900, record_ids=(receipt(0, 90),)))  # waits for a second one
    assert (await retention(rig, far).round())["samples"] == 0
    await step(rig, 0, 0, publish=6)
    held = {job.job_id for job in [rig.store.last(rig.key)]}
    assert rig.states.kept(rig.key) == held
    assert (await retention(rig, far).round())["jobs"] == 0, (
        "the last job, whose state the next step starts from"
    )
    waiting = rig.store.counts("samples", rig.key)["waiting"]
    assert waiting == 1
    await rig.handlers.on_unit(sample(901, record_ids=(receipt(1, 91),), load_id="run:6"))
    await rig.settle()
    assert (await retention(rig, far).round())["jobs"] == 0, (
        "the newest has no verdict yet, the other one's state is on disk"
    )


async def test_a_receipt_that_a_client_chose_says_no_time_and_is_remembered(rig):
    assert record_times_ms([receipt(1), receipt(2)]) == (
        int((T0.timestamp() + DAY_S) * 1000),
        int((T0.timestamp() + 2 * DAY_S) * 1000),
    )
    assert record_times_ms([receipt(1), "my-own-key"]) == (
        int((T0.timestamp() + DAY_S) * 1000),
        None,
    )
    for number in (0, 1):
        await rig.handlers.on_unit(sample(number, record_ids=(f"my-own-{number}",)))
    await rig.settle()
    await rig.publish(
        6, rig.bus.candidates[-1].content_id, candidate=rig.bus.candidates[-1].event_id
    )
    for number in range(1, 5):
        await step(rig, number, 10 * number, publish=6 + number, load=f"run:{5 + number}")
    await retention(rig, T0 + timedelta(days=365)).round()
    assert rows(rig, "jobs") == 3, "its job is gone, which tells most of what is kept"
    assert {record for (record,) in rig.store._rows("select record_id from records")} >= {
        "my-own-0",
        "my-own-1",
    }
    await rig.handlers.on_unit(sample(0, record_ids=("my-own-0",), load_id="run:10"))
    await rig.handlers.on_unit(sample(55, record_ids=("my-own-1",), load_id="run:10"))
    await rig.settle()
    assert {(r.sample_id, r.reason) for r in rig.bus.refusals} == {("smp-55", "already_trained")}


async def test_rejected_contents_go_once_nothing_names_them(rig):
    contents = [await step(rig, day, 10 * day) for day in range(4)]
    assert len(set(contents)) == 4
    heads, store = Heads("lora-served", contents[1], pending=(contents[2],)), Dropping()
    assert (await retention(rig, AT + timedelta(days=6), heads, store).round())["contents"] == 0, (
        "not old enough"
    )
    gone = await retention(rig, AT + timedelta(days=8), heads, store).round()
    assert gone["contents"] == 2
    assert sorted(store.dropped) == sorted([contents[0], contents[3]]), (
        "a release of the chain and one that waits for a person name the others"
    )
    assert min(heads.limits) > 100_000, "the whole chain, not its end"
    assert (await retention(rig, AT + timedelta(days=8), heads, store).round())["contents"] == 0


def test_the_log_of_a_step_process_is_bounded(tmp_path):
    log = tmp_path / "sao.log"
    with log.open("ab", buffering=0) as process:
        process.write(b"a" * 90)
        bound_log(log, 100)
        assert log.stat().st_size == 90
        process.write(b"b" * 20)
        bound_log(log, 100)
        process.write(b"c")
    assert log.read_bytes() == b"c"
    assert (tmp_path / "sao.log.1").read_bytes() == b"a" * 90 + b"b" * 20


async def test_fetched_adapters_do_not_pile_up(rig):
    for name in ("lora-1", "lora-2"):
        (rig.home / "trees" / name).mkdir(parents=True)
    assert (await retention(rig, AT).round())["trees"] == 2
    assert list((rig.home / "trees").iterdir()) == []


class Late:
    """StepProcess that begins when it is let."""

    def __init__(self, process) -> None:
        self.process, self.let = process, asyncio.Event()

    async def step(self, request):
        await self.let.wait()
        return await self.process.step(request)

    async def stop(self):
        await self.process.stop()


async def test_an_adapter_that_a_new_job_starts_from_is_there_though_a_round_has_just_looked(
    rig, tmp_path
):
    """The round finds no job; before it removes what it found, one is opened that starts from a fetched adapter."""
    content = await step(rig, 0, 0)
    other = Rig(tmp_path / "other")
    other.bus, other.shelf = rig.bus, rig.shelf
    await other.restart()
    other.loop.executor.process = late = Late(other.loop.executor.process)
    adapters, now, learning = other.trees, asyncio.get_running_loop(), []
    adapters.fetch(other.shelf, content, "default")
    await other.publish(6, content)
    for number in (2, 3):
        await other.handlers.on_unit(sample(number, load_id="run:6"))

    def look():
        seen = retention(other, AT).contents_in_use()
        learning.append(asyncio.run_coroutine_threadsafe(other.settle(), now))
        with suppress(TimeoutError):
            learning[0].result(0.5)  # as far as it comes before the round goes on
        return seen

    assert await asyncio.to_thread(adapters.prune, look) == 1
    late.let.set()
    await asyncio.wrap_future(learning[0])
    assert other.shelf.trained_on(rig.bus.candidates[-1].content_id) == [
        "smp-0",
        "smp-1",
        "smp-2",
        "smp-3",
    ]
    await other.stop()
