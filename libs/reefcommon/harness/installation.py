"""The plan of an installation: all files with their digests, and the script that carries it."""

import base64
import hashlib
import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reefcommon.harness.agent import Agent, Place
from reefcommon.harness.tree import Tree

FORMAT = 1
PROGRAM = Path(__file__).parent / "reef-agent.mjs"
_SCRIPT = Path(__file__).parent / "install.sh"


@dataclass(frozen=True, slots=True)
class Version:
    """The release that an installation is of. `content_id` is empty if it has no harness."""

    release_id: str
    content_id: str
    reason: str = ""


def plan_of(agent: Agent, tree: Tree, place: Place, version: Version) -> dict[str, Any]:
    """Return the plan, in JSON types."""
    files = dict(sorted(agent.files(tree, place).items()))
    sums = {name: hashlib.sha256(body).hexdigest() for name, body in files.items()}
    return {
        "format": FORMAT,
        "agent": agent.name,
        "about": agent.about,
        "url": place.url,
        "scenario": place.scenario,
        "release": version.release_id,
        "content": version.content_id,
        "reason": version.reason,
        "packages": [asdict(one) for one in agent.packages],
        "environment": dict(agent.environment()),
        "arguments": list(agent.arguments),
        "logs": agent.logs,
        "headless": sorted(agent.headless_flags),
        "shared": {name: sorted(keys) for name, keys in agent.shared.items()},
        "files": {name: base64.b64encode(body).decode() for name, body in files.items()},
        "sums": sums,
        "digest": tree_digest(sums),
        "program": base64.b64encode(PROGRAM.read_bytes()).decode(),
    }


def tree_digest(sums: dict[str, str]) -> str:
    """Return the SHA-256 over all paths and digests."""
    rows = "".join(f"{name}\n{sums[name]}\n" for name in sorted(sums))
    return hashlib.sha256(rows.encode()).hexdigest()


def script_of(plan: dict[str, Any]) -> str:
    """Return the script that installs a plan. It runs under any POSIX shell."""
    program = base64.b64decode(plan["program"]).decode()
    carried = json.dumps(plan, ensure_ascii=True, sort_keys=True)
    values = {
        "@AGENT@": shlex.quote(plan["agent"]),
        "@PLAN@": base64.encodebytes(carried.encode()).decode().rstrip("\n"),
        "@PROGRAM@": base64.encodebytes(program.encode()).decode().rstrip("\n"),
    }
    script = _SCRIPT.read_text()
    for name, value in values.items():
        script = script.replace(name, value)
    return script


def failure_script(status: int, words: str) -> str:
    """Return the script that says why nothing can be installed, and fails."""
    # `curl -f` drops the body of a refusal, and the shell behind it ends well: so it is a script.
    said = shlex.quote(f"reef: nothing was installed: {status} {' '.join(words.split())}")
    return f"#!/bin/sh\n{{\nprintf '%s\\n' {said} >&2\nexit 1\n}}\n"
