"""The contract of the store below the broker, on our own and on SeaweedFS, by the client of the broker."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
)
from obstore.store import S3Store

from reefstack import object_store, ports, s3, seaweedfs
from reefstack.restart_policy import RestartPolicy
from reefstack.spec import ProcessSpec, S3Writable, Site, StoreKind
from reefstack.state import secrets_of
from reefstack.supervisor import Supervisor

pytestmark = pytest.mark.broker


@dataclass
class Running:
    """A store with its supervisor, which starts it again after a death."""

    spec: ProcessSpec
    supervisor: Supervisor
    store: S3Store

    async def kill(self) -> None:
        os.kill(self.supervisor.children[self.spec.name].record.pid, signal.SIGKILL)
        while self.supervisor.ready:
            await asyncio.sleep(0.01)
        while not self.supervisor.ready:
            await asyncio.sleep(0.01)

    @property
    def at(self) -> S3Writable:
        assert isinstance(self.spec.probe, S3Writable)
        return self.spec.probe


@pytest.fixture(params=object_store.KINDS)
async def running(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    async with started(request.param, tmp_path) as store:
        yield store


@pytest.fixture(params=object_store.KINDS)
async def on_small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Running]:
    """The store on a disk of 100 MB, which only root can make."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(disk))
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk")
    try:
        async with started(request.param, disk) as store:
            yield store
    finally:
        subprocess.run(("umount", "-l", str(disk)), check=True)


@contextlib.asynccontextmanager
async def started(kind: StoreKind, tmp_path: Path) -> AsyncIterator[Running]:
    chosen = ports.choose(object_store.listeners(kind), asked={}, last={}, prefer_defaults=False)
    binaries = {seaweedfs.NAME: seaweedfs.binary()} if kind == seaweedfs.NAME else {}
    site = Site(tmp_path, chosen, binaries, secrets_of(tmp_path), store=kind)
    spec = object_store.spec(site)
    supervisor = Supervisor(f"stores-{chosen['s3']}", policy=RestartPolicy(settled_s=0.0))
    try:
        await supervisor.start([spec])
        assert isinstance(spec.probe, S3Writable)
        yield Running(spec, supervisor, s3.bucket(spec.probe, timeout_s=20))
    finally:
        await supervisor.stop()


async def put(store: S3Store, key: str, value: bytes, **mode: Any) -> str:
    return str((await obstore.put_async(store, key, value, use_multipart=False, **mode))["e_tag"])


async def get(store: S3Store, key: str) -> bytes:
    return bytes(await (await obstore.get_async(store, key)).bytes_async())


async def names(store: S3Store, prefix: str, **options: Any) -> list[str]:
    pages = obstore.list(store, prefix=prefix, **options)
    return [str(entry["path"]) async for page in pages for entry in page]


async def test_a_value_is_read_as_it_was_written(running: Running) -> None:
    store = running.store
    for key, value in {
        "a/plain": b"value",
        "a/empty": b"",
        "a/sp ace+&<é>%": b"odd name",
        "a/large": os.urandom(3_000_000),
    }.items():
        etag = await put(store, key, value)
        assert await get(store, key) == value
        about = await obstore.head_async(store, key)
        assert (about["size"], about["e_tag"]) == (len(value), etag)
        (listed,) = [
            e async for p in obstore.list(store, prefix="a") for e in p if e["path"] == key
        ]
        assert (listed["size"], listed["e_tag"]) == (len(value), etag)
    assert bytes(await obstore.get_range_async(store, "a/plain", start=1, end=3)) == b"al"
    assert bytes(await obstore.get_range_async(store, "a/large", start=2_999_990, length=10))
    with pytest.raises(FileNotFoundError):
        await get(store, "a/none")


async def test_an_object_is_created_once(running: Running) -> None:
    store = running.store
    made = await asyncio.gather(
        *(put(store, "once", b"%d" % n, mode="create") for n in range(8)), return_exceptions=True
    )
    assert [type(r) for r in made].count(AlreadyExistsError) == 7
    (winner,) = [n for n, r in enumerate(made) if isinstance(r, str)]
    assert await get(store, "once") == b"%d" % winner
    await obstore.delete_async(store, "once")
    assert await put(store, "once", b"again", mode="create") != made[winner]


async def test_an_update_wants_the_latest_etag(running: Running) -> None:
    store = running.store
    first = await put(store, "watermark", b"0")
    second = await put(store, "watermark", b"1", mode={"e_tag": first})
    for stale in (first, '"no such"'):
        with pytest.raises(PreconditionError):
            await put(store, "watermark", b"x", mode={"e_tag": stale})
    with pytest.raises(BaseError):
        await put(store, "missing", b"x", mode={"e_tag": first})
    assert await get(store, "watermark") == b"1"
    assert (await obstore.head_async(store, "watermark"))["e_tag"] == second


async def test_of_concurrent_updates_each_counts_once(running: Running) -> None:
    await put(running.store, "counter", b"0")

    async def add() -> None:
        while True:
            answer = await obstore.get_async(running.store, "counter")
            value = int(bytes(await answer.bytes_async()))
            try:
                await put(
                    running.store,
                    "counter",
                    b"%d" % (value + 1),
                    mode={"e_tag": answer.meta["e_tag"]},
                )
            except PreconditionError:
                continue
            return

    await asyncio.gather(*(add() for _ in range(12)))
    assert await get(running.store, "counter") == b"12"


async def test_a_listing_has_every_key_in_order(running: Running) -> None:
    store = running.store
    keys = [
        f"list/p{n % 3}/{n:05}.batch" for n in range(1200)
    ]  # two pages, and two requests that delete
    for start in range(0, len(keys), 100):
        await asyncio.gather(*(put(store, key, b"x") for key in keys[start : start + 100]))
    await put(store, "listing-other", b"x")
    assert await names(store, "list") == sorted(keys)
    assert await names(store, "list/p1") == sorted(keys[1::3])
    assert await names(store, "list/p1", offset=keys[1000]) == [
        k for k in sorted(keys[1::3]) if k > keys[1000]
    ]
    found = await obstore.list_with_delimiter_async(store, "list")
    assert sorted(found["common_prefixes"]) == ["list/p0", "list/p1", "list/p2"]
    assert list(found["objects"]) == []
    found = await obstore.list_with_delimiter_async(store, "list/p2")
    assert [entry["path"] for entry in found["objects"]] == sorted(keys[2::3])
    await obstore.delete_async(store, keys[:1050])
    assert await names(store, "list") == sorted(keys[1050:])


async def test_a_wrong_key_is_refused(running: Running) -> None:
    for wrong in ({"secret_access_key": "other"}, {"access_key_id": "OTHER"}):
        good = {
            "access_key_id": running.at.access_key,
            "secret_access_key": running.at.secret_key,
        }
        stranger = S3Store(
            s3.BUCKET,
            endpoint=running.at.url,
            region=s3.REGION,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
            **{**good, **wrong},
        )
        with pytest.raises(PermissionDeniedError):
            await put(stranger, "theirs", b"x")
        with pytest.raises(BaseError, match="403"):
            await names(stranger, "")
    with pytest.raises(FileNotFoundError):
        await get(running.store, "theirs")


async def test_etags_and_values_survive_kill_9(running: Running) -> None:
    """Six kills under load: every acknowledged write is there, with its etag and in its order."""
    known: dict[str, tuple[bytes, str]] = {}
    gone: set[str] = set()
    stop = False

    async def write(worker: int) -> None:
        number = 0
        while not stop:
            key, value = f"w{worker}/{number:06}", os.urandom(number % 700)
            try:
                known[key] = (value, await put(running.store, key, value, mode="create"))
                if number % 5 == 4:
                    await obstore.delete_async(running.store, f"w{worker}/{number - 2:06}")
                    gone.add(f"w{worker}/{number - 2:06}")
            except BaseError:
                await asyncio.sleep(0.02)
            number += 1

    workers = [asyncio.ensure_future(write(n)) for n in range(4)]
    for _ in range(6):
        await asyncio.sleep(0.3)
        await running.kill()
    stop = True
    await asyncio.gather(*workers)
    assert len(known) > 50
    pages = obstore.list(running.store)
    found = {entry["path"]: entry["e_tag"] async for page in pages for entry in page}
    for key, (value, etag) in known.items():
        if key in gone:
            assert key not in found
        elif key in found:  # it may have been deleted by a request that was not answered
            assert found[key] == etag
            assert await get(running.store, key) == value
        else:
            assert int(key[3:]) % 5 == 2
    last = max(set(known) & set(found))
    assert await put(running.store, last, b"next", mode={"e_tag": known[last][1]}) != known[last][1]


async def test_later_writes_are_listed_as_younger(running: Running) -> None:
    """The broker finds the first and the last object of a partition by their age."""
    keys = [f"age/{9 - n}" for n in range(3)]
    for key in keys:
        await put(running.store, key, b"x")
        await asyncio.sleep(1.1)
    pages = obstore.list(running.store, prefix="age")
    ages = {entry["path"]: entry["last_modified"] async for page in pages for entry in page}
    assert all(ages[before] < ages[after] for before, after in pairwise(keys))


async def test_a_full_disk_loses_nothing_acknowledged(on_small_disk: Running) -> None:
    """Writes are refused until there is room. Ours takes them again once objects are deleted."""
    store, value = on_small_disk.store, os.urandom(1_000_000)
    known: list[str] = []
    with contextlib.suppress(BaseError):
        for n in range(200):
            await put(store, f"fill/{n:03}", value)
            known.append(f"fill/{n:03}")
    assert 20 < len(known) < 100
    assert await names(store, "fill") == known
    if on_small_disk.spec.name == object_store.NAME:
        await obstore.delete_async(store, known[::2])
        known = known[1::2]
        async with asyncio.timeout(20):
            while True:
                with contextlib.suppress(BaseError):
                    await put(store, "fill/room", value)
                    break
        known.append("fill/room")
        await on_small_disk.kill()  # SeaweedFS would not be ready again: its probe is a write
    assert await names(store, "fill") == known
    for key in known:
        assert await get(store, key) == value
