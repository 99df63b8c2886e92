"""The artifact store that a deployment's settings name."""

from reefcommon.artifacts import ArtifactStore
from reefcommon.settings import SystemSettings
from reefkit.artifacts.git import GitArtifactStore


def open_artifact_store(settings: SystemSettings) -> ArtifactStore:
    """lakeFS where `artifacts_url` names it, else git + LFS at `<state_dir>/artifacts.git`.

    Raises:
        BadConfig: the URL is not one of lakeFS.
    """
    if not settings.artifacts_url:
        return GitArtifactStore(settings.state_dir / "artifacts.git")
    from reefkit.artifacts.lakefs import LakeFSArtifactStore

    return LakeFSArtifactStore(settings.artifacts_url)
