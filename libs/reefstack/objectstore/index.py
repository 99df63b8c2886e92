"""The objects by key, in the order of their keys. Pure."""

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from datetime import UTC, datetime
from xml.sax.saxutils import escape

from reefstack.objectstore.segments import Place

_LAST = chr(0x10FFFF)


@dataclass(slots=True)
class Entry:
    """An object. `sequence` grows with each write and is its etag."""

    place: Place
    size: int
    frame_size: int
    sequence: int
    at_us: int
    listed: str = ""

    @property
    def etag(self) -> str:
        """The etag, with quotes. No two writes have the same."""
        return f'"{self.sequence:016x}"'


@dataclass(frozen=True, slots=True)
class Listing:
    """A page: XML of each object and prefix, and the first key of the next page or ""."""

    contents: list[str]
    prefixes: list[str]
    next_key: str


@dataclass(slots=True)
class Index:
    """A dict with its keys sorted. `live_bytes`: the frames of all objects."""

    entries: dict[str, Entry] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    live_bytes: int = 0

    def set(self, key: str, entry: Entry) -> None:
        """Add or replace an object."""
        old = self.entries.get(key)
        if old is None:
            insort(self.keys, key)
        else:
            self.live_bytes -= old.frame_size
        self.entries[key] = entry
        self.live_bytes += entry.frame_size

    def remove(self, key: str) -> None:
        """Remove an object; it must be there."""
        self.live_bytes -= self.entries.pop(key).frame_size
        del self.keys[bisect_left(self.keys, key)]

    def list(
        self, prefix: str, *, after: str = "", start: str = "", delimiter: str = "", limit: int
    ) -> Listing:
        """A page of the keys with `prefix`: above `after`, not below `start`."""
        above = bisect_right(self.keys, after) if after else 0
        at = max(bisect_left(self.keys, max(prefix, start)), above)
        contents: list[str] = []
        prefixes: list[str] = []
        while at < len(self.keys) and self.keys[at].startswith(prefix):
            key = self.keys[at]
            if len(contents) + len(prefixes) == limit:
                return Listing(contents, prefixes, key)
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            if cut < 0:
                contents.append(self._listed(key))
                at += 1
            else:
                common = key[: cut + len(delimiter)]
                shown = f"<Prefix>{escape(common)}</Prefix>"
                prefixes.append(f"<CommonPrefixes>{shown}</CommonPrefixes>")
                at = bisect_left(self.keys, common + _LAST)
        return Listing(contents, prefixes, "")

    def _listed(self, key: str) -> str:
        entry = self.entries[key]
        # kept: the broker lists a partition at each fetch that has news
        if not entry.listed:
            # microseconds: the broker tells the first and last object of a partition by their age
            at = datetime.fromtimestamp(entry.at_us / 1e6, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            entry.listed = (
                f"<Contents><Key>{escape(key)}</Key><LastModified>{at}</LastModified>"
                f"<ETag>{escape(entry.etag)}</ETag><Size>{entry.size}</Size></Contents>"
            )
        return entry.listed
