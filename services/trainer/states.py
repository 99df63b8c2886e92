"""Saved states as directories `<root>/<binding>/<job>/`. A rename puts each in place."""

import shutil
from collections.abc import Collection
from pathlib import Path

import orjson

from reefcommon.ids import digest
from services.trainer.ports import StepReply

REPLY = "reply.json"
ADAPTER = "adapter"  # the directory of the exported adapter in a state


class SavedStates:
    """States of finished steps by job. All calls block."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, binding: str, job_id: str) -> Path:
        return self._home(binding) / job_id

    def reply(self, binding: str, job_id: str) -> StepReply | None:
        """Return the reply of a step whose state is complete."""
        path = self.path(binding, job_id) / REPLY
        return StepReply(**orjson.loads(path.read_bytes())) if path.is_file() else None

    def kept(self, binding: str) -> set[str]:
        """Return the jobs whose state is complete."""
        return {path.parent.name for path in self._home(binding).glob(f"*/{REPLY}")}

    def prune(self, binding: str, keep: Collection[str]) -> None:
        """Remove all other states and rests of interrupted steps."""
        for path in self._home(binding).glob("*"):
            if path.name not in keep:
                shutil.rmtree(path, ignore_errors=True)

    def _home(self, binding: str) -> Path:
        return self._root / digest("binding", binding, length=16)
