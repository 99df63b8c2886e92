"""An exchange with the model, a report on it, and the units of experience that they make."""

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, FiniteFloat

from reefcommon.events.base import Event, Outcome, Value


class WeightSpan(Value):
    """Tokens [start, end) of a completion were sampled from the weights named `version`."""

    version: str
    start: int
    end: int


class Completion(Value):
    """A choice. Untrainable if `token_ids` and `logprobs` differ in length."""

    index: int
    finish_reason: str | None = None
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    weight_versions: tuple[WeightSpan, ...] = ()


class Usage(Value):
    """Token counts, `estimated` by Reef if the engine states none."""

    prompt_tokens: int
    completion_tokens: int
    estimated: bool = False


class BodyRef(Value):
    """A claim check: a file of the body store, by digest."""

    uri: str
    sha256: str
    size_bytes: int


class Sampling(Value):
    """The sampling parameters that the engine used, its own defaults included.

    `stated_by` is `request` if Reef derived them from the request and the node's defaults. `top_k`
    0 and `top_p` 1.0 mean no truncation, `allowed_token_ids` () the whole vocabulary.
    `constrained`: a grammar, forbidden words or a search had a say in each token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    logit_bias: bool = False
    allowed_token_ids: tuple[int, ...] = ()
    constrained: bool = False
    seed: int | None = None
    stated_by: Literal["engine", "request"] = "request"


class AppliedHarness(Value):
    """The text that the gateway added to a chat; `reefcommon.harness.delivery.added` says how.

    `release_id`: the release whose harness it is; a session keeps the harness it began with.
    """

    release_id: str
    content_id: str
    at: Literal["system", "user_end"]
    text: str


class InferenceRecorded(Event):
    """An exchange with the model. `event_id` is the receipt.

    `session_end`: the client said that this exchange is the last of its session.
    """

    type: Literal["inference.recorded.v1"] = "inference.recorded.v1"
    api: Literal["chat.completions", "completions", "responses", "messages"] = "chat.completions"
    outcome: Outcome
    session_tag: str | None = None
    tags: dict[str, str] = {}
    session_end: bool = False
    # Digest of user, safety_identifier and token: two callers never share a session.
    caller: str = ""
    release_id: str | None = None
    load_id: str | None = None
    model: str = ""
    engine: str = ""
    request: dict[str, Any] | None = None
    response: dict[str, Any] | None = None
    body_ref: BodyRef | None = None
    prompt_token_ids: tuple[int, ...] = ()
    completions: tuple[Completion, ...] = ()
    usage: Usage | None = None
    sampling: Sampling | None = None
    loads: dict[str, str] = {}
    error: str | None = None
    status: int = 200
    stream: bool = False
    first_token_ms: float | None = None
    duration_ms: float = 0.0
    idempotency_digest: str | None = None
    harness: AppliedHarness | None = None
    # the client's format, of which `request` and `response` are the chat
    dialect: str = ""


class FeedbackReported(Event):
    """A reward, or words, about earlier exchanges. `event_id` is the report's own receipt."""

    type: Literal["feedback.reported.v1"] = "feedback.reported.v1"
    references: tuple[str, ...]
    score: FiniteFloat | None = None
    feedback: str | dict[str, Any] | None = None
    metadata: dict[str, Any] = {}
    content_digest: str


class Signal(Value):
    """The result of a recipe's `signal`. `words`: a hint, a critique.

    `teacher`: messages that a teacher reads instead of the unit's own, without the answer.
    `logprobs`: a teacher's log-probability of each response token, in nats; empty if not asked.
    """

    score: FiniteFloat | None = None
    weight: FiniteFloat = 1.0
    words: str = ""
    teacher: tuple[dict[str, Any], ...] = ()
    logprobs: tuple[FiniteFloat, ...] = ()
    labels: dict[str, str | float] = {}


class Unit(Event):
    """Experience that a recipe may use. `event_id` is the unit's id.

    `tokens` are the prompt and response ids. `loss_mask` and `logprobs` have the length of the
    response, `len(tokens) - prompt_length`. The mask is 1 on sampled tokens, and 0, with
    log-probability 0.0, on tokens of the environment. If `untrainable`, the token fields are empty.
    """

    record_ids: tuple[str, ...]
    session_id: str | None = None
    tags: dict[str, str] = {}
    release_id: str | None = None
    load_id: str | None = None
    score: FiniteFloat | None = None
    feedback: str | dict[str, Any] | None = None
    metadata: dict[str, Any] = {}
    tokens: tuple[int, ...] = ()
    prompt_length: int = 0
    loss_mask: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    temperature: float = 1.0
    sampling: tuple[Sampling, ...] = ()
    loads: dict[str, str] = {}
    untrainable: str | None = None
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    recorded_at: AwareDatetime
    # Put in by the host of a recipe; absent in the log.
    signal: Signal | None = None

    @property
    def reward(self) -> float | None:
        """The signal's score; without a signal the report's."""
        return self.score if self.signal is None else self.signal.score


class SampleReady(Unit):
    """A record, or the turns of a session, with its report: a unit of kind `report`."""

    type: Literal["sample.ready.v1"] = "sample.ready.v1"
    report_id: str | None = None


class TurnFollowed(Unit):
    """An exchange and what followed its answer: a unit of kind `turn`, once for each exchange.

    `next_messages`: user text or tool results of the session's next request, after the answer;
    empty if the session ended, `closed` by the client or `idle` for too long.
    """

    type: Literal["turn.followed.v1"] = "turn.followed.v1"
    next_messages: tuple[dict[str, Any], ...] = ()
    ended: Literal["followed", "closed", "idle"] = "followed"


class SessionEnded(Unit):
    """A session that ended: a unit of kind `session`.

    If its tokens do not join, it has several `parts`, each an event of its own, `part` from 0.
    """

    type: Literal["session.ended.v1"] = "session.ended.v1"
    ended: Literal["closed", "idle"] = "idle"
    part: int = 0
    parts: int = 1


AnyUnit = Annotated[SampleReady | TurnFollowed | SessionEnded, Field(discriminator="type")]
UnitKind = Literal["report", "turn", "session"]
_KINDS: dict[type[Unit], UnitKind] = {
    SampleReady: "report",
    TurnFollowed: "turn",
    SessionEnded: "session",
}


def unit_kind(unit: Unit) -> UnitKind:
    return _KINDS[type(unit)]
