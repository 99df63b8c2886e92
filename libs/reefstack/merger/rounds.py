"""Merges the objects of the embedded log, while everything runs."""

# The broker lists a whole partition to read from it, and gives up after the client's waiting time:
# with ten thousand objects no new record is read. At every moment, and after any death, the object
# with the greatest name that is not above an offset must have that offset. So the order is:
#
#     note the merge, with the first part -> flush -> write the whole as the first part -> flush
#     -> remove the other parts, lowest first -> flush -> remove the note
#
# The next round finishes the merge of a note. The broker tells the beginning and the end of a
# partition by the age of objects: the oldest is never merged, the newest is written again after.

import asyncio
import base64
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import obstore
import orjson
from obstore.store import ObjectStore

from reefcommon.errors import ReefError
from reefstack.merger.objects import Limits, Merged, Piece, end_of, merged, records_of, runs

NOTES = "reef-merges"
_CLOCK_S = 1.1  # S3 gives ages in seconds


class MergeFailed(ReefError):
    """An object has changed since it was read or written. No part of it was removed."""


@dataclass(slots=True)
class Merger:
    """A worker on a log; there must be no second worker."""

    store: ObjectStore
    limits: Limits = field(default_factory=Limits)
    flush: Callable[[], None] = os.sync
    objects: int = 0
    _written_at: float = field(default=0.0, init=False)

    async def round(self) -> None:
        """Finish noted merges, then merge in every partition."""
        for note, _ in await self._listed(f"{NOTES}/"):
            await self._finish(note)
            await self._renew(note.removeprefix(f"{NOTES}/"))
        for place, pieces in (await self._partitions()).items():
            before = self.objects
            for run in runs(pieces, self.limits):
                began = time.monotonic()
                parts = {p.offset: await self._get(_path(place, p.offset)) for p in run}
                for made in await asyncio.to_thread(merged, parts.items()):
                    await self._replace(place, made, parts[made.offset])
                await asyncio.sleep(time.monotonic() - began)  # half of the time is for others
            if self.objects > before:
                await self._renew(place)

    async def _replace(self, place: str, made: Merged, original: bytes) -> None:
        first = _path(place, made.offset)
        if await self._get(first) != original:
            raise MergeFailed(f"{first} is not what it was a moment ago")
        note = await self._note(place, made.offset, made.end, made.parts[1:], original)
        await self._put(first, made.data)
        if await self._get(first) != made.data:
            await self._put(first, original)
            raise MergeFailed(f"{first} is not what was written; it is as it was again")
        await self._finish(note)

    async def _note(
        self, place: str, offset: int, end: int, parts: Sequence[int], first: bytes
    ) -> str:
        note, kept = f"{NOTES}/{place}", base64.b64encode(first).decode()
        said = {"offset": offset, "end": end, "parts": parts, "first": kept}
        await self._put(note, orjson.dumps(said))
        await asyncio.to_thread(self.flush)
        return note

    async def _finish(self, note: str) -> None:
        try:
            said = orjson.loads(await self._get(note))
        except orjson.JSONDecodeError:  # the write was cut off, so the merge had not begun
            await obstore.delete_async(self.store, note)
            return
        place, offset = note.removeprefix(f"{NOTES}/"), said["offset"]
        end = await self._end(place, offset)
        self._written_at = time.monotonic()
        # the whole is there: its parts go. If not, all parts are there, the first one in the note
        if end == said["end"]:
            await asyncio.to_thread(self.flush)
            for part in said["parts"]:
                await obstore.delete_async(self.store, _path(place, part))
            self.objects += len(said["parts"])
        elif end == offset:
            await self._put(_path(place, offset), base64.b64decode(said["first"]))
        await asyncio.to_thread(self.flush)
        await obstore.delete_async(self.store, note)

    async def _end(self, place: str, offset: int) -> int | None:
        try:
            return end_of(offset, await self._get(_path(place, offset)))
        except FileNotFoundError:  # the topic was deleted meanwhile
            return None

    async def _renew(self, place: str) -> None:
        # the newest object of the partition must be the youngest again
        await asyncio.sleep(max(self._written_at + _CLOCK_S - time.monotonic(), 0))
        pieces = [piece for _, piece in _batches(await self._listed(f"{place}/records/"))]
        if not pieces:
            return
        offset = pieces[-1].offset
        data = await self._get(_path(place, offset))
        if records_of(offset, data):
            note = await self._note(place, offset, end_of(offset, data), (), data)
            await self._put(_path(place, offset), data)
            await self._finish(note)

    async def _partitions(self) -> dict[str, list[Piece]]:
        # one listing of everything: a request for each partition costs more, most of it at rest
        found: dict[str, list[Piece]] = {}
        for place, piece in _batches(await self._listed("clusters/")):
            found.setdefault(place, []).append(piece)
        return found

    async def _listed(self, prefix: str) -> list[tuple[str, int]]:
        chunks = [chunk async for chunk in obstore.list(self.store, prefix=prefix)]
        return sorted((entry["path"], entry["size"]) for chunk in chunks for entry in chunk)

    async def _get(self, path: str) -> bytes:
        return bytes(await (await obstore.get_async(self.store, path)).bytes_async())

    async def _put(self, path: str, data: bytes) -> None:
        await obstore.put_async(self.store, path, data, use_multipart=False)


def _path(place: str, offset: int) -> str:
    return f"{place}/records/{offset:020}.batch"


def _batches(listed: list[tuple[str, int]]) -> Iterator[tuple[str, Piece]]:
    for path, size in listed:
        place, _, name = path.rpartition("/records/")
        if place and name.endswith(".batch") and name[:-6].isdecimal():
            yield place, Piece(int(name[:-6]), size)
