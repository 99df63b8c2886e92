"""Fetches the files of a release from the gateway into a directory."""

import hashlib
import shutil
import tempfile
from pathlib import Path
from urllib.parse import quote

from reefcli.errors import CommandFailed
from reefcli.gateway import Gateway
from reefcommon.artifacts import replace_tree, safe_path
from reefcommon.errors import Poison, Transient


def fetch(gateway: Gateway, scenario: str, release_id: str, kind: str, to: Path) -> list[str]:
    """Write the files of a release's content to `to`, verified, by one rename; return their names.

    Raises:
        CommandFailed: no such content, `to` holds files, or a file is not as it is listed.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise CommandFailed(f"{to} exists and is not an empty directory: name another with --to")
    place = f"/reef/scenarios/{scenario}/releases/{quote(release_id, safe='')}/contents/{kind}"
    files = gateway.get(place)["files"]
    to.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{to.name}-", dir=to.parent))
    try:
        for row in files:
            target = staged / safe_path(row["path"])
            target.parent.mkdir(parents=True, exist_ok=True)
            data = gateway.download(f"{place}/{quote(row['path'])}")
            if hashlib.sha256(data).hexdigest() != row["sha256"]:
                raise CommandFailed(f"{row['path']} came damaged: try again")
            target.write_bytes(data)
        staged.chmod(0o755)
        if to.exists():
            to.rmdir()
        replace_tree(staged, to)
    except (Poison, Transient, OSError) as error:
        raise CommandFailed(f"cannot write {to}: {error}") from None
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return [row["path"] for row in files]
