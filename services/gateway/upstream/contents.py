"""The artifact store, as the gateway hands out files of releases."""

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path

from reefcommon.artifacts import ArtifactStore, Manifest, read_manifest
from reefcommon.errors import Poison
from reefcommon.events import Kind
from reefcommon.kinds import KINDS
from reefcommon.releases import ReleaseHeads
from reefkit.artifacts.cache import FetchedTrees
from services.gateway.domain.errors import ApiError

KEPT = 8


@dataclass(slots=True)
class Contents:
    """The contents of releases, with copies of the last few on the gateway's own disk."""

    heads: ReleaseHeads
    store: ArtifactStore
    trees: FetchedTrees
    _recent: list[str] = field(default_factory=list)
    _choosing: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, heads: ReleaseHeads, store: ArtifactStore, root: Path) -> "Contents":
        return cls(heads, store, FetchedTrees(root))

    async def find(self, scenario: str, release_id: str, kind: Kind) -> tuple[Path, Manifest]:
        """Return the files of a release's content.

        Raises:
            ApiError: 404, there is no such release or content, or the kind is not handed out.
            Unavailable: the heads or the artifact store do not answer.
        """
        release = await self.heads.release(scenario, release_id)
        if release is None:
            words = f"Scenario {scenario!r} has no release {release_id[:80]!r}"
            raise not_found(f"{words}; see /reef/scenarios/{scenario}/releases.")
        content = release.contents.get(kind)
        if content is None or not KINDS[kind].downloaded:
            there = [
                name for name, row in KINDS.items() if row.downloaded and name in release.contents
            ]
            words = f"Release {release_id[:80]!r} has no files of kind {kind!r}"
            raise not_found(f"{words}; it has: {', '.join(there) or 'none'}.")
        try:
            return await asyncio.to_thread(self._fetch, scenario, content)
        except Poison as error:
            raise not_found(f"The content of {release_id[:80]!r} is gone: {error}.") from None

    def _fetch(self, scenario: str, content: str) -> tuple[Path, Manifest]:
        with self._choosing:
            self._recent = [*(name for name in self._recent if name != content), content][-KEPT:]
        tree = self.trees.fetch(self.store, content, scenario)
        self.trees.prune(lambda: self._recent)
        return tree, read_manifest(tree)


def not_found(words: str) -> ApiError:
    return ApiError(404, words, code="not_found")
