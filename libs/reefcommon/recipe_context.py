"""What a recipe may use: models, durable state, programs, time, the gateway."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from reefcommon.errors import ReefError
from reefcommon.events import Kind, Release

if TYPE_CHECKING:
    from reefcommon.harness.tree import Tree

Messages = Sequence[Mapping[str, Any]]


class BudgetSpent(ReefError):
    """The budget of a model is used up. The unit waits until it is raised."""


class ModelFailed(ReefError):
    """A model gave no usable answer: it is away, too slow, or refuses the request."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A choice of a model. `tokens`: prompt and completion together, shared by all choices."""

    text: str
    message: Mapping[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    tokens: int = 0


class Model(Protocol):
    """A model of `serve.yaml`'s `models:` section, or `served`, with its budget.

    Raises:
        BudgetSpent: calls, tokens or money are used up.
        ModelFailed: no usable answer, after some tries.
    """

    # Calls are recorded with their purpose and never trained on. Inside `signal` and `propose` an
    # answer is kept: after a crash the same call has the same answer, and is not counted again.

    async def chat(
        self, messages: Messages, *, purpose: str, n: int = 1, **params: Any
    ) -> list[Reply]:
        """Return `n` answers. `params`: temperature, max_tokens, seed, …"""

    async def score(self, tokens: Sequence[int], *, purpose: str) -> list[float]:
        """Return log p(tokens[i] | tokens[:i]) in nats, for i >= 1."""


class State(Protocol):
    """Durable state of a binding: JSON values and blobs by key."""

    # In `signal`, `propose` and `on_verdict` all writes are kept together with the result, or not
    # at all. In `seek` they are kept by `SeekContext.commit`.

    def get(self, key: str, default: Any = None) -> Any: ...
    def put(self, key: str, value: Any) -> None: ...
    def blob(self, key: str) -> bytes | None: ...
    def put_blob(self, key: str, value: bytes) -> None: ...
    def drop(self, key: str) -> None: ...
    def keys(self, prefix: str = "") -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a program: wall and CPU seconds, memory, files, output."""

    wall_s: float = 60.0
    cpu_s: float = 60.0
    memory_mb: int = 1024
    file_mb: int = 64
    output_kb: int = 64
    processes: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a program. `status` other than `ok` says which bound it met."""

    status: Literal["ok", "failed", "timeout", "memory", "output", "killed"]
    code: int | None = None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0


class RunProgram(Protocol):
    def __call__(
        self,
        program: str,
        *,
        stdin: str = "",
        files: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> Awaitable[Outcome]:
        """Run a Python program in a sandbox: own folder, no network, bounded. See `Limits`."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """A candidate's results on a minibatch, by task: mean scores, first answers, words on these."""

    scores: tuple[float, ...]
    answers: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


class Context(Protocol):
    @property
    def scenario(self) -> str: ...

    @property
    def head(self) -> Release | None:
        """The newest release that the host knows."""

    @property
    def models(self) -> Mapping[str, Model]: ...

    @property
    def store(self) -> State: ...

    def now(self) -> datetime: ...

    @property
    def run(self) -> RunProgram: ...

    async def trial(
        self,
        candidates: Sequence["Tree"],
        tasks: Sequence[Any],
        *,
        score: Callable[[Any, Any], Any] | None = None,
        samples: int = 1,
        seed: int = 0,
        **params: Any,
    ) -> list[TrialResult]:
        """Let the served model answer tasks under each harness tree, with equal seeds.

        Raises as `Model`, and Poison if a task or a tree is wrong or the verifier fails.
        """
        # Outside the release path, and in the budget of `models["served"]`. The empty tree is the
        # served model alone. `tasks` have the forms of `evaluation.tasks`; without `score` the
        # evaluation's verifier scores. `params`: as in `Model.chat`, instead of the evaluation's.


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer of the served model to a seeker, with its receipt."""

    receipt: str
    text: str
    message: Mapping[str, Any]
    finish_reason: str | None
    release_id: str
    load_id: str


Learned = Literal["published", "pending", "rejected", "aborted", "finished", "refused"]


class SeekContext(Context, Protocol):
    async def ask(
        self, messages: Messages, *, key: str, tags: Mapping[str, str], **params: Any
    ) -> Asked:
        """Ask the served model as a user does. The same `key` gives the same answer for good."""

    async def report(
        self,
        receipt: str,
        score: float,
        *,
        feedback: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Report on an answer. A repeat has no effect."""

    async def learned(self, receipts: Sequence[str]) -> Learned:
        """Wait for the end of the job that has used the reports on these receipts."""

    async def publish(
        self, kind: Kind, directory: Path, *, metrics: Mapping[str, float], reason: str
    ) -> str:
        """Propose a directory as a candidate of this kind; return its id. A repeat is the same."""

    async def commit(self) -> None:
        """Make all writes to `store` durable, in one step."""

    async def sleep_until(self, when: datetime) -> None: ...
