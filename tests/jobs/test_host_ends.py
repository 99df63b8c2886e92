"""A call of a recipe that ends its process is refused after some ends: the host and its other recipes go on."""

import asyncio
import importlib
import json
import sys

import pytest

from reefcommon.events import CandidateProposed, ReleaseRejected
from reefkit.jobs.store import JobStore
from reefkit.recipes import host_ends
from reefkit.recipes.host_ends import MAX_ENDS, EndsHost, HostEnds
from tests.jobs.ending_host import Ending, EndingSeeker
from tests.recipes.samples import AT, sample
from tests.seek.rig import SeekRig
from tests.seek.world import World

WORDS = "has ended its host 3 times: mend the recipe"


@pytest.fixture
async def home(tmp_path):
    """Two recipes with two samples each, and a verdict for the first."""
    rig = SeekRig(tmp_path, World(), EndingSeeker(""), Ending(""))
    first, _ = rig.handlers.loops
    for number in range(2):
        await rig.handlers.on_unit(sample(number, feedback="a b"))
    while await first.once():
        pass
    (candidate,) = rig.bus.of(CandidateProposed)
    verdict = ReleaseRejected(
        event_id="rej-1", at=AT, scenario="default", outcome="rejected", reason="worse",
        candidate_id=candidate.event_id,
    )  # fmt: skip
    await rig.handlers.on_publication(verdict)
    for number in range(2, 4):
        await rig.handlers.on_unit(sample(number, feedback="a b"))
    for loop in rig.handlers.loops:
        loop.runtime.stop()
    rig.store.close()
    return tmp_path


async def lives(home, where: str) -> tuple[list[int], list]:
    """Start the host as a supervisor does, until it ends in order. Returns exit codes and facts."""
    codes: list[int] = []
    while len(codes) < MAX_ENDS + 2:
        command = (sys.executable, "-m", "tests.jobs.ending_host", str(home), where)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate()
        codes.append(process.returncode)
        if codes[-1] == 0:
            return codes, json.loads(said.splitlines()[-1])
    return codes, []


async def test_a_decide_that_ends_the_process_is_refused_and_others_go_on(home):
    codes, (bad, sound) = await lives(home, "decide")
    assert codes == [9] * MAX_ENDS + [0]
    assert f"decide {WORDS}" in bad[0]
    assert sound[0] is None
    assert sound[2] == {"announced": 1}
    codes, (bad, _) = await lives(home, "decide")
    assert codes == [0], "the next host does not try it anew"
    codes, (mended, _) = await lives(home, "")
    assert mended[0] is not None, "nothing shows that it was mended, so it is tried again later"


async def test_a_seek_that_ends_the_process_waits_and_others_go_on(home):
    codes, (bad, sound) = await lives(home, "seek")
    assert codes == [9] * MAX_ENDS + [0]
    assert f"seek {WORDS}" in bad[1]
    assert sound[2] == {"announced": 1}


async def test_a_verdict_whose_taking_ends_the_process_is_dropped(home):
    codes, (bad, _) = await lives(home, "on_verdict")
    assert codes == [9] * MAX_ENDS + [0]
    assert bad[0] is None
    rig = SeekRig(home, World(), EndingSeeker(""), Ending(""))
    assert rig.store.verdicts(rig.loop.binding.key) == []
    rig.store.close()


@pytest.fixture
def ends(tmp_path, monkeypatch):
    """The notes of three hosts: each has the disk of the one before."""
    store = JobStore(tmp_path / "ledger.sqlite")
    recipe = Ending("")
    yield lambda: HostEnds(store, "default/R", recipe)
    store.close()


_CUT: list = []  # a context that is collected would end in order


async def cut(host: HostEnds, place: str = "") -> None:
    """The process ends inside the call."""
    _CUT.append(host.noted("decide", place))
    await _CUT[-1].__aenter__()


async def test_a_call_is_tried_again_after_a_while_and_counts_anew_once_it_ends(ends, monkeypatch):
    for _ in range(MAX_ENDS):
        await cut(ends())
    host = ends()
    with pytest.raises(EndsHost):
        await cut(host)
    monkeypatch.setattr(host_ends, "WATCHED_S", 0.0)
    with pytest.raises(EndsHost):
        await cut(host)  # also when the host is old
    monkeypatch.setattr(host_ends, "AGAIN_AFTER_S", 0.0)
    async with host.noted("decide"):
        pass
    monkeypatch.undo()
    await cut(ends())
    async with ends().noted("decide"):
        pass


async def test_another_place_or_a_mended_recipe_counts_anew(ends, monkeypatch):
    for place in ("a", "a", "a", "b", "a", "a"):
        await cut(ends(), place)
    monkeypatch.setattr(host_ends, "_version", lambda _recipe: "mended")
    for _ in range(MAX_ENDS):
        await cut(ends(), "a")
    with pytest.raises(EndsHost):
        await cut(ends(), "a")


def test_a_module_beside_the_recipe_is_part_of_its_version(tmp_path, monkeypatch):
    file, beside = tmp_path / "own_recipe.py", tmp_path / "own_words.py"
    file.write_text("from tests.jobs.ending_host import Ending\n\n\nclass Own(Ending): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("own_recipe").Own("")
    seen = {host_ends._version(own)}
    for mended in (beside, file):
        mended.write_text("# mended\n")
        seen.add(host_ends._version(own))
    assert len(seen) == 3
    assert host_ends._version(own) in seen


async def test_calls_that_were_cut_off_together_are_made_one_at_a_time(tmp_path):
    store, turn, under_way = JobStore(tmp_path / "ledger.sqlite"), asyncio.Lock(), []
    for key in "AB":
        await cut(HostEnds(store, key, Ending(""), turn))

    async def call(key: str) -> None:
        async with HostEnds(store, key, Ending(""), turn).noted("decide"):
            under_way.append(key)
            await asyncio.sleep(0.05)
            assert under_way == [key]
            under_way.remove(key)

    await asyncio.gather(call("A"), call("B"))
    store.close()


async def test_a_long_call_and_an_old_host_are_not_noted(ends, monkeypatch):
    monkeypatch.setattr(host_ends, "SETTLED_S", 0.01)
    for _ in range(MAX_ENDS + 1):
        call = ends().noted("seek")
        await call.__aenter__()
        await asyncio.sleep(0.1)
    monkeypatch.undo()
    host = ends()
    async with host.noted("decide"):
        pass
    monkeypatch.setattr(host_ends, "WATCHED_S", 0.0)
    for _ in range(MAX_ENDS + 1):
        await cut(host)


async def test_a_cancellation_at_the_end_of_a_call_is_kept(ends, monkeypatch):
    async def settle(*_args: object) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ending.set()
            await asyncio.sleep(0.1)

    ending = asyncio.Event()
    monkeypatch.setattr(HostEnds, "_settle", settle)

    async def call() -> None:
        async with ends().noted("decide"):
            await asyncio.sleep(0.05)
        await asyncio.sleep(60)

    task = asyncio.create_task(call())
    await asyncio.wait_for(ending.wait(), 5)
    task.cancel()
    await asyncio.wait([task], timeout=2)
    assert task.cancelled()
