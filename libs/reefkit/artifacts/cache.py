"""A cache of trees of the artifact store on a service's own disk.

A job is saved before its tree is fetched, so a later round of `prune` finds the tree in use.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from reefcommon.artifacts import ArtifactStore, materialize

LEFTOVER_KEPT_S = 3600.0
"""Hidden folders belong to fetches under way; killed processes left the older."""
_AWAY = ".away-"


class FetchedTrees:
    """Trees at `<root>/<content id>`. Thread-safe; one process uses `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._choosing = threading.Lock()

    def fetch(self, store: ArtifactStore, content: str, scenario: str) -> Path:
        """Return the files of a content, for a saved job. Raises as `ArtifactStore.get`."""
        with self._choosing:
            pass  # a round that does not know of the job yet ends its moves first
        return materialize(store, content, scenario, self.root)

    def prune(self, in_use: Callable[[], Collection[str]]) -> int:
        """Remove all trees but those of `in_use`, and return the number of removed."""
        if not self.root.is_dir():
            return 0
        with self._choosing:
            found = [path for path in self.root.glob("[!.]*") if path.is_dir()]
            keep = in_use()
            gone = [path for path in found if path.name not in keep]
            if gone:
                away = Path(tempfile.mkdtemp(prefix=_AWAY, dir=self.root))
                for path in gone:
                    path.rename(away / path.name)
        before = time.time() - LEFTOVER_KEPT_S
        for path in self.root.glob(".*"):
            with suppress(FileNotFoundError):  # a fetch that ended meanwhile
                if path.name.startswith(_AWAY) or path.stat().st_mtime < before:
                    shutil.rmtree(path, ignore_errors=True)
        return len(gone)
