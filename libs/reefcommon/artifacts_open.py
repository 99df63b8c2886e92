"""The artifact store that a deployment's settings name."""

from reefcommon.artifacts import ArtifactStore
from reefcommon.artifacts_git import GitArtifactStore
from reefcommon.settings import SystemSettings


def open_artifact_store(settings: SystemSettings) -> ArtifactStore:
    """lakeFS where `artifacts_url` names it, else git + LFS at `<state_dir>/artifacts.git`.

    Raises:
        BadConfig: the URL is not one of lakeFS.
    """
    if not settings.artifacts_url:
        return GitArtifactStore(settings.state_dir / "artifacts.git")
    from reefcommon.artifacts_lakefs import (
        LakeFSArtifactStore,
    )  # its client takes two seconds to import

    return LakeFSArtifactStore(settings.artifacts_url)
