"""The artifact store that a deployment's settings name."""

from reefcommon.artifacts import ArtifactStore
from reefcommon.settings import SystemSettings
from reefkit.artifacts.git import GitArtifactStore


def open_artifact_store(settings: SystemSettings) -> ArtifactStore:
    """Open lakeFS if `artifacts_url` names it, else git + LFS at `<state_dir>/artifacts.git`.

    Raises:
        BadConfig: the URL is not that of a lakeFS repository.
    """
    if not settings.artifacts_url:
        return GitArtifactStore(settings.state_dir / "artifacts.git")
    from reefkit.artifacts.lakefs import LakeFSArtifactStore

    return LakeFSArtifactStore(settings.artifacts_url)
