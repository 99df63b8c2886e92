"""ArtifactStore in memory."""

from collections.abc import Collection
from pathlib import Path

from reefcommon.artifacts import (
    MANIFEST_NAME,
    Manifest,
    check_complete,
    check_content_id,
    safe_path,
    staged,
)
from reefcommon.errors import Poison


class MemoryArtifactStore:
    """Trees by scenario and content id, each with its manifest and the bytes of its files."""

    def __init__(self) -> None:
        self.trees: dict[tuple[str, str], tuple[Manifest, dict[str, bytes]]] = {}

    def put(self, tree: Path, manifest: Manifest, scenario: str) -> str:
        check_complete(tree, manifest)
        files = {name: (tree / name).read_bytes() for name in manifest.files}
        self.trees.setdefault((scenario, manifest.content_id), (manifest, files))
        return manifest.content_id

    def get(self, content_id: str, scenario: str, destination: Path) -> Manifest:
        try:
            manifest, files = self.trees[scenario, check_content_id(content_id)]
        except KeyError:
            raise Poison(f"no content {content_id!r} of scenario {scenario!r}") from None
        with staged(destination) as directory:
            for name, data in files.items():
                target = directory / safe_path(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            (directory / MANIFEST_NAME).write_text(manifest.model_dump_json())
        return manifest

    def drop(self, contents: Collection[str], scenario: str) -> None:
        for content in contents:
            self.trees.pop((scenario, check_content_id(content)), None)
