"""Reports on earlier exchanges. A report that could not be used is refused."""

import re
from typing import Annotated, Any, Self

import orjson
import pydantic
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from reefcommon.ids import SCENARIO_PATTERN, digest, is_receipt, shard_in
from services.gateway.domain.errors import ApiError, invalid
from services.gateway.domain.exchange import check_depth

MAX_REFERENCES = 1000
_SCENARIO = re.compile(SCENARIO_PATTERN)
# a report travels in its event, and Kafka's default limit for a message is 1 MiB
MAX_REPORT_BYTES = 900 * 1024
_WORDS = {"missing": "is missing", "too_short": "names no receipt"}
_RECEIPT = "rec-01a22f3e65a079ceb6c663e2561ca4c7-e836"


def _reference(value: str) -> str:
    if not is_receipt(value):
        raise ValueError("is not a receipt")
    if value.startswith("rep-"):
        raise ValueError("is the id of a report; a report refers to receipts of inferences")
    if value.startswith("rec-") and shard_in(value) is None:
        raise ValueError(_no_receipt(value))
    return value


def _own_id(value: str) -> str:
    if not is_receipt(value) or shard_in(value) is not None:
        raise ValueError(
            "must be 1 to 128 letters, digits or . _ : - and not have the form of Reef's ids"
        )
    return value


class Report(BaseModel):
    """The worth of exchanges: a score, words, or both."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        json_schema_extra={
            "examples": [{"score": 1.0, "feedback": "just right", "references": [_RECEIPT]}]
        },
    )

    references: tuple[Annotated[str, AfterValidator(_reference)], ...] = Field(
        min_length=1,
        max_length=MAX_REFERENCES,
        description="receipts of exchanges: the header x-reef-agent-record-id of each",
        json_schema_extra={"uniqueItems": True},
    )
    score: FiniteFloat | None = Field(None, description="higher is better")
    feedback: str | dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    scenario: str | None = Field(None, description="as the header x-reef-scenario")
    agent_record_id: Annotated[str, AfterValidator(_own_id)] | None = Field(
        None, description="idempotency key"
    )

    @pydantic.model_validator(mode="after")
    def _says_something(self) -> Self:
        if len(set(self.references)) < len(self.references):
            raise ValueError("references: a receipt is named twice")
        if self.score is None and self.feedback is None:
            raise ValueError("score: a 'score' (a finite number), 'feedback', or both are needed")
        return self

    def digest(self, scenario: str) -> str:
        """Return the identity of the content: the same id with another digest is a conflict."""
        return digest(
            "report", scenario, self.score, self.feedback, self.references, self.metadata or {}
        )


def parse(raw: bytes) -> Report:
    """Read a report.

    Raises:
        ApiError: 400, with the field that is wrong; 413.
    """
    if len(raw) > MAX_REPORT_BYTES:
        words = f"A report has at most {MAX_REPORT_BYTES} bytes."
        raise ApiError(413, words, code="body_too_large")
    try:
        report = Report.model_validate_json(raw)
        check_depth(raw, orjson.loads(raw))
    except ValidationError as error:
        raise _refusal(error) from None
    except orjson.JSONDecodeError as error:  # pydantic takes NaN and Infinity
        raise invalid(None, f"The request body is not valid JSON: {error}.") from None
    return report


def _refusal(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_input=False)[0]
    message = _WORDS.get(first["type"], first["msg"].removeprefix("Value error, "))
    if not first["loc"]:
        about, found, words = message.partition(": ")
        if first["type"] == "value_error" and found:
            return invalid(about, f"'{about}': {words}.")
        return invalid(None, f"The request body is no report: {message}.")
    name, *rest = first["loc"]
    field = str(name)[:80] + "".join(f"[{part}]" for part in rest if isinstance(part, int))
    if first["type"] == "extra_forbidden":
        known = ", ".join(Report.model_fields)
        message = f"is not a field of a report; put it into 'metadata'. Fields: {known}"
    about = f"The field '{field}'" if first["type"] in _WORDS else f"'{field}':"
    return invalid(field, f"{about} {message}.")


def check_known(position: int, reference: str, known: tuple[str, str], scenario: str) -> None:
    """Refuse a reference to a report, or to a record of another scenario. Raises ApiError."""
    name = f"references[{position}]"
    if known[1] == "report":
        raise invalid(name, f"'{name}' is the id of a report, and not the receipt of an inference.")
    if known[0] != scenario:
        words = f"'{name}' ({reference}) is not of scenario {scenario!r}"
        raise invalid(name, f"{words}; send the report with its own x-reef-scenario.")


def not_a_receipt(position: int, reference: str) -> ApiError:
    """400: no exchange has this receipt, nor ever will."""
    name = f"references[{position}]"
    return invalid(name, f"'{name}' {_no_receipt(reference)}.")


def _no_receipt(reference: str) -> str:
    return (
        f"({reference[:80]}) is the receipt of no exchange. A receipt is the header "
        "x-reef-agent-record-id of an answer: rec-, 32 hex digits, -, 4 hex digits, "
        "or the id that you sent with the request"
    )


def check_scenario(name: str) -> str:
    """Return a scenario's name. Raises ApiError if it cannot be one."""
    if not _SCENARIO.fullmatch(name):
        words = f"{name[:80]!r} cannot be a scenario's name: it must match {SCENARIO_PATTERN}."
        raise ApiError(400, words, code="invalid_scenario", param="scenario")
    return name
