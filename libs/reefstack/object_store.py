"""The store below the embedded broker: our own, or SeaweedFS in a directory that has it."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from reefstack import s3, seaweedfs
from reefstack.errors import CannotStart
from reefstack.spec import ProcessSpec, S3Writable
from reefstack.state import Secrets

Kind = Literal["objectstore", "seaweedfs"]
NAME: Kind = "objectstore"
KINDS: tuple[Kind, ...] = ("objectstore", "seaweedfs")
KEEPS_SEAWEEDFS = (
    "this state directory keeps its log in SeaweedFS, as it was made with it; a new directory uses"
    " Reef's own store, which costs less and syncs every write"
)
# A consumer that lost its place in a power cut reads some events again, as after any death. A high
# watermark that was lost had no record behind it: records are synced, and the log keeps the order.
_LAZILY = "clusters/*/groups/*,clusters/*/topics/*/partitions/*/watermark.json"


def kind_of(state_dir: Path, asked: Kind | None) -> Kind:
    """The store that has this directory's data, else `asked`, else ours. Raises CannotStart."""
    there = [kind for kind in KINDS if (state_dir / kind).is_dir()]
    if there and asked not in (None, *there):
        raise CannotStart(
            f"the log of {state_dir} is kept by {there[0]}, not by {asked}. Leave out"
            " REEF_STACK_OBJECT_STORE, or choose another --state-dir."
        )
    return there[0] if there else asked or NAME


def spec(
    kind: Kind,
    binaries: Mapping[str, str],
    ports: Mapping[str, int],
    state_dir: Path,
    secrets: Secrets,
) -> ProcessSpec:
    """How to run the store of this kind."""
    if kind == seaweedfs.NAME:
        return seaweedfs.spec(binaries[seaweedfs.NAME], ports, state_dir, secrets)
    data, port = state_dir / NAME, ports["s3"]
    url = f"http://127.0.0.1:{port}"
    return ProcessSpec(
        name=NAME,
        argv=(sys.executable, "-m", "reefstack.objectstore"),
        env={
            "REEF_OBJECTSTORE_DIRECTORY": str(data),
            "REEF_OBJECTSTORE_PORT": str(port),
            "REEF_OBJECTSTORE_BUCKET": s3.BUCKET,
            "REEF_OBJECTSTORE_ACCESS_KEY": secrets.s3_access_key,
            "REEF_OBJECTSTORE_SECRET_KEY": secrets.s3_secret_key,
            "REEF_OBJECTSTORE_LAZILY": _LAZILY,
        },
        probe=S3Writable(url, s3.BUCKET, secrets.s3_access_key, secrets.s3_secret_key),
        log=state_dir / "logs" / f"{NAME}.log",
        url=url,
        ports=(port,),
        directories=(data,),
        ready_within_s=60.0,
    )


def listeners(kind: Kind) -> tuple[str, ...]:
    """The names of the ports that it needs."""
    return ("s3_master", "s3_volume", "s3_filer", "s3") if kind == seaweedfs.NAME else ("s3",)
