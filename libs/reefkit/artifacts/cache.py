"""Trees of the artifact store that a service has fetched to its own disk: kept while a job starts from them, then removed.

    job written down --> fetch --> read                 a round: listed --> what is in use --> moved away --> removed

A job is written down before its tree is fetched. So a round that begins after that finds it in use, and one that had begun before is
waited for: what it moves away is fetched anew.
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
"""Hidden folders are of fetches under way; older ones were left by killed processes."""
_AWAY = ".away-"


class FetchedTrees:
    """Trees by content id, each at `<root>/<content id>`. Safe for the threads of one process, which alone uses `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._choosing = threading.Lock()

    def fetch(self, store: ArtifactStore, content: str, scenario: str) -> Path:
        """The verified files of a content, for a job that is written down already. Raises as `ArtifactStore.get` does."""
        with self._choosing:
            pass  # a round that does not know of the job yet ends its moves first
        return materialize(store, content, scenario, self.root)

    def prune(self, in_use: Callable[[], Collection[str]]) -> int:
        """Remove the trees of all contents but those that `in_use` names when it is called. Returns how many."""
        if not self.root.is_dir():
            return 0
        with self._choosing:
            found = [
                path
                for path in self.root.iterdir()
                if path.is_dir() and not path.name.startswith(".")
            ]
            keep = in_use()
            gone = [path for path in found if path.name not in keep]
            if gone:
                away = Path(tempfile.mkdtemp(prefix=_AWAY, dir=self.root))
                for path in gone:
                    path.rename(away / path.name)
        for path in self.root.glob(".*"):
            with suppress(FileNotFoundError):  # a fetch that ended meanwhile
                if (
                    path.name.startswith(_AWAY)
                    or path.stat().st_mtime < time.time() - LEFTOVER_KEPT_S
                ):
                    shutil.rmtree(path, ignore_errors=True)
        return len(gone)
