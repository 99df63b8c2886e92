"""The step process: `python -m services.trainer.worker <package.module:Recipe> <model directory> <niceness>`.

    stdin   line 1: the recipe's knobs; then one step per line: {job_id, state, actor, adopt, out, batch}
    stdout  one reply per line: {ok: {step, proposes, metrics}} | {poison: why}
    stderr  everything that libraries print

It keeps the learner between steps, and loads a state only where the request starts from another one than it holds. When its input
ends, it ends: a trainer that was killed leaves no step process behind.
"""

import contextlib
import io
import math
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import orjson

from reefcommon.artifacts import BASE_CONTENT_ID
from reefcommon.errors import Poison
from reefcommon.events import SampleReady
from reefcommon.recipe import Learner, WeightRecipe, load_recipe
from services.trainer import finite
from services.trainer.filesystem import ADAPTER, REPLY

Held = tuple[str | None, str | None, str | None]
"""(state, actor, adopt) that the learner stands at."""


class Worker:
    """One recipe's learner, and where it stands."""

    def __init__(self, recipe: WeightRecipe, model_path: Path) -> None:
        self._recipe, self._model_path = recipe, model_path
        self._learner: Learner | None = None
        self._held: Held | None = None

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """One step, its state put in place by a rename. Raises Poison where the batch, or the start, can never be used, and where the step
        leaves numbers that are not finite: what was saved before stays what the next one starts from."""
        learner = self._at((request["state"], request["actor"], request["adopt"]))
        self._held = (
            None  # until the step is done, the learner stands nowhere that can be gone back to
        )
        result = learner.step([SampleReady.model_validate(sample) for sample in request["batch"]])
        figures = {name: value for name, value in result.metrics.items() if math.isfinite(value)}
        reply = {
            "step": result.step,
            "proposes": self._recipe.proposes(result.step),
            "metrics": figures,
        }
        out = Path(request["out"])
        staged = out.with_name(f".{out.name}.{os.getpid()}")
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        learner.save(staged)
        if reply["proposes"]:
            learner.export_adapter(staged / ADAPTER)
        finite.check_new(staged)
        (staged / REPLY).write_bytes(orjson.dumps(reply))
        _sync(staged)
        shutil.rmtree(out, ignore_errors=True)
        staged.rename(out)
        _sync_directory(out.parent)
        self._held = (str(out), None, None)
        return reply

    def _at(self, start: Held) -> Learner:
        """The learner at the state that the step starts from."""
        state, actor, adopt = start
        if self._learner is not None and self._held == start:
            return self._learner
        for saved in filter(None, (state, actor)):
            finite.check_saved(Path(saved))
        if self._learner is None or state is None:
            self._learner = self._recipe.learner(self._model_path)
        learner = self._learner
        if state is not None:
            learner.load(Path(state), actor_from=Path(actor) if actor else None)
        if adopt is not None:
            learner.adopt(None if adopt == BASE_CONTENT_ID else Path(adopt))
        return learner


def _sync(tree: Path) -> None:
    """Everything below `tree` is on the disk before the rename makes it visible."""
    for path in sorted(tree.rglob("*"), reverse=True):
        if path.is_file():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
        else:
            _sync_directory(path)
    _sync_directory(tree)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def serve(worker: Worker, requests: io.BufferedReader, replies: io.BufferedWriter) -> None:
    """Answer until the input ends."""
    for line in requests:
        try:
            reply: dict[str, Any] = {"ok": worker.handle(orjson.loads(line))}
        except Poison as error:
            reply = {"poison": str(error)}
        replies.write(orjson.dumps(reply) + b"\n")
        replies.flush()


def main() -> None:
    """Take the pipes for the protocol, so that no library's print can break it."""
    dotted, model_path, niceness = sys.argv[1:4]
    # Ctrl-C reaches the whole group; the trainer decides when its step process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(OSError):
        os.nice(int(niceness))
    requests = os.fdopen(0, "rb", closefd=False)
    recipe = load_recipe(dotted, orjson.loads(requests.readline()))
    if not isinstance(recipe, WeightRecipe):
        raise TypeError(dotted)
    with contextlib.suppress(BrokenPipeError):
        serve(Worker(recipe, Path(model_path)), requests, replies)


if __name__ == "__main__":
    main()
