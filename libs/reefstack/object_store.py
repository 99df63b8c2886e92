"""The store below the embedded broker: our own, or SeaweedFS in a directory that has it."""

import sys
from pathlib import Path

from reefstack import ports, s3, seaweedfs
from reefstack.errors import CannotStart
from reefstack.spec import ProcessSpec, Site, StoreKind

NAME: StoreKind = "objectstore"
KINDS: tuple[StoreKind, ...] = (NAME, "seaweedfs")
KEEPS_SEAWEEDFS = (
    "this state directory keeps its log in SeaweedFS, as it was made with it; a new directory uses"
    " Reef's own store, which costs less and syncs every write"
)
# A consumer that lost its place in a power cut reads some events again, as after any death. A high
# watermark that was lost had no record behind it: records are synced, and the log keeps the order.
_LAZILY = "clusters/*/groups/*,clusters/*/topics/*/partitions/*/watermark.json"


def kind_of(state_dir: Path, asked: StoreKind | None) -> StoreKind:
    """The store that has this directory's data, else `asked`, else ours. Raises CannotStart."""
    there = [kind for kind in KINDS if (state_dir / kind).is_dir()]
    if there and asked not in (None, *there):
        remedy = "Leave out REEF_STACK_OBJECT_STORE, or choose another --state-dir."
        raise CannotStart(f"the log of {state_dir} is kept by {there[0]}, not by {asked}. {remedy}")
    return there[0] if there else asked or NAME


def spec(site: Site) -> ProcessSpec:
    """How to run the store of this site."""
    if site.store == seaweedfs.NAME:
        return seaweedfs.spec(site)
    data, port, bucket = site.state_dir / NAME, site.ports["s3"], site.s3(s3.BUCKET)
    return ProcessSpec(
        name=NAME,
        argv=(sys.executable, "-m", "reefstack.objectstore"),
        env={
            "REEF_OBJECTSTORE_DIRECTORY": str(data),
            "REEF_OBJECTSTORE_PORT": str(port),
            "REEF_OBJECTSTORE_BUCKET": s3.BUCKET,
            "REEF_OBJECTSTORE_ACCESS_KEY": bucket.access_key,
            "REEF_OBJECTSTORE_SECRET_KEY": bucket.secret_key,
            "REEF_OBJECTSTORE_LAZILY": _LAZILY,
        },
        probe=bucket,
        log=site.log(NAME),
        url=bucket.url,
        ports=(port,),
        directories=(data,),
        ready_within_s=60.0,
    )


def listeners(kind: StoreKind) -> tuple[str, ...]:
    """The names of the ports that it needs."""
    return ports.SEAWEEDFS if kind == seaweedfs.NAME else ("s3",)
