"""The step process: `python -m services.trainer.worker <module:Recipe> <model dir> <niceness>`.

stdin   line 1: the knobs; then a step a line: {job_id, state, actor, adopt, out, batch (a file)}
stdout  a reply a line: {job, ok: {step, proposes, metrics, skipped}} | {job, poison, trace}
        | {job, damaged} | {job, away}
stderr  the output of libraries
"""

import contextlib
import io
import math
import operator
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import orjson

from reefcommon.artifacts import BASE_CONTENT_ID
from reefcommon.errors import Poison, Unavailable
from reefcommon.files import sync_directory
from reefcommon.recipe import Learner, StepResult, WeightRecipe
from reefcommon.recipe_loading import load_recipe
from reefkit.jobs.faults import last_lines, place_of
from services.trainer import finite
from services.trainer.batches import read_batch
from services.trainer.ports import CannotStart, StateDamaged, StepReply, StepRequest
from services.trainer.states import ADAPTER, REPLY

Position = tuple[Path | None, Path | None, str | None]
"""(state, actor, adopt) of the learner."""
MAX_METRICS, MAX_STEP = 1000, 2**53


class Worker:
    def __init__(self, recipe: WeightRecipe, model_path: Path) -> None:
        self._recipe, self._model_path, self._pid = recipe, model_path, os.getpid()
        self._learner: Learner | None = None
        self._position: Position | None = None

    def handle(self, request: StepRequest) -> StepReply:
        """Make a step and rename its state into place. Without `out`, only try it.

        Raises:
            StateDamaged: the start cannot be used.
            Poison: the batch cannot be used, or numbers are not finite.
            Unavailable: the learner does not come up at the start, or its device is not there.
        """
        learner = self._at((request.state, request.actor, request.adopt))
        self._position = None  # a step that fails half-way leaves the learner in an unknown state
        step, metrics, skipped = checked(learner.step(read_batch(request.batch)))
        if os.getpid() != self._pid:  # the learner has forked, and one process answers
            os._exit(0)
        proposes = not skipped and bool(self._recipe.proposes(step))
        reply = StepReply(step, proposes, metrics, skipped)
        if request.out is not None:
            self._save(learner, request.out, reply)
        return reply

    def forget(self) -> None:
        """Drop the learner; the next step builds it anew."""
        self._learner = None

    def _save(self, learner: Learner, out: Path, reply: StepReply) -> None:
        staged = out.with_name(f".{out.name}.{os.getpid()}")
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        learner.save(staged)
        if reply.proposes:
            learner.export(staged / ADAPTER)
        finite.check_new(staged)
        (staged / REPLY).write_bytes(orjson.dumps(reply))
        _sync(staged)
        shutil.rmtree(out, ignore_errors=True)
        staged.rename(out)
        sync_directory(out.parent)
        self._position = (out, None, None)

    def _at(self, start: Position) -> Learner:
        state, actor, adopt = start
        if self._learner is not None and self._position == start:
            return self._learner
        try:
            for saved in filter(None, (state, actor)):
                finite.check_saved(saved)
            if self._learner is None or state is None:
                self._learner = self._recipe.learner(self._model_path)
            if state is not None:
                self._load(state, actor, adopts=adopt is not None)
            if adopt is not None:
                self._learner.adopt(None if adopt == BASE_CONTENT_ID else Path(adopt))
        except (StateDamaged, Unavailable):
            raise
        except Exception as error:  # the learner is its author's code
            # A changed knob, a teacher that does not fit: a person mends it.
            self.forget()
            raise CannotStart(f"the learner does not come up: {place_of(error)}") from error
        return self._learner

    def _load(self, state: Path, actor: Path | None, *, adopts: bool) -> None:
        assert self._learner is not None
        try:
            self._learner.load(state, actor_from=actor)
        except Exception as error:  # the learner is its author's code
            if not adopts or isinstance(error, Unavailable):
                raise
            # Of another shape, before a roll-back: the policy is adopted, the rest begins anew.
            traceback.print_exc()
            self._learner = self._recipe.learner(self._model_path)


def checked(result: object) -> tuple[int, dict[str, float], bool]:
    """Return step, metrics and whether it was skipped. Raises Poison if it is no StepResult."""
    if not isinstance(result, StepResult) or result.action not in ("step", "skip"):
        raise Poison(f"step() returned {result!r:.80}, not a StepResult")
    try:
        step = operator.index(result.step)
        metrics = {str(name): float(value) for name, value in result.metrics.items()}
        "".join(metrics).encode()
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise Poison(f"step() returned a StepResult that cannot be kept: {error}") from None
    if not 0 <= step < MAX_STEP or len(metrics) > MAX_METRICS:
        bounds = f"step {step:.6g}, {len(metrics)} metrics"
        raise Poison(f"step() returned a StepResult out of bounds: {bounds}")
    sound = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return step, sound, result.action == "skip"


def _sync(tree: Path) -> None:
    # The files before the rename that shows them: else a power loss could leave empty ones.
    for path in sorted(tree.rglob("*"), reverse=True):
        if path.is_file():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
        else:
            sync_directory(path)
    sync_directory(tree)


def serve(worker: Worker, requests: io.BufferedReader, replies: io.BufferedWriter) -> None:
    # The input ends with its writer, so that a killed trainer leaves no step process behind.
    for line in requests:
        request = StepRequest.model_validate_json(line)
        try:
            reply: dict[str, Any] = {"ok": worker.handle(request)}
        except StateDamaged as error:
            reply = {"damaged": str(error)}
        except Unavailable as error:
            traceback.print_exc()
            worker.forget()
            reply = {"away": str(error)}
        except Exception as error:  # noqa: BLE001  # the learner is its author's code
            traceback.print_exc()
            reply = {"poison": place_of(error), "trace": last_lines(error)}
        replies.write(orjson.dumps({"job": request.job_id, **reply}) + b"\n")
        replies.flush()


def main() -> None:
    """Take the pipes for the protocol, so that a library's print cannot break it."""
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
