"""A report: what it may say, and about what. Anything else is refused before it is kept."""

import json
import math
import re
from dataclasses import dataclass
from typing import Any

import orjson

from reefcommon.ids import SCENARIO_PATTERN, digest, is_receipt, shard_in
from services.gateway.domain.errors import ApiError, invalid
from services.gateway.domain.exchange import check_depth

MAX_REFERENCES = 1000
MAX_REPORT_BYTES = (
    900 * 1024
)  # a report travels in its event, and Kafka's default limit for a message is 1 MiB
_FIELDS = frozenset({"score", "feedback", "references", "metadata", "agent_record_id", "scenario"})


@dataclass(frozen=True, slots=True)
class Report:
    """A report that is well-formed."""

    references: tuple[str, ...]
    score: float | None
    feedback: str | dict[str, Any] | None
    metadata: dict[str, Any]
    key: str | None
    scenario: str | None = None

    def digest(self, scenario: str) -> str:
        """The identity of the content: the same id with another digest is a conflict."""
        return digest("report", scenario, self.score, self.feedback, self.references, self.metadata)


def parse(raw: bytes) -> Report:
    """Read a report.

    Raises:
        ApiError: 400, with the field that is wrong; 413.
    """
    if len(raw) > MAX_REPORT_BYTES:
        raise ApiError(
            413, f"A report has at most {MAX_REPORT_BYTES} bytes.", code="body_too_large"
        )
    body = _object(raw)
    unknown = sorted(set(body) - _FIELDS)
    if unknown:
        raise invalid(
            unknown[0][:80],
            f"'{unknown[0][:80]}' is not a field of a report; put it into 'metadata'. Fields: {', '.join(sorted(_FIELDS))}.",
        )
    metadata = body.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise invalid("metadata", "'metadata' must be an object.")
    report = Report(
        references=_references(body.get("references")),
        score=_score(body.get("score")),
        feedback=_feedback(body.get("feedback")),
        metadata=metadata or {},
        key=_key(body.get("agent_record_id")),
        scenario=_scenario(body.get("scenario")),
    )
    if report.score is None and report.feedback is None:
        raise invalid(
            "score",
            "A report needs a 'score' (a finite number) or 'feedback' (a text or an object), or both.",
        )
    return report


def check_known(position: int, reference: str, known: tuple[str, str], scenario: str) -> None:
    """Refuse a reference to a report, or to a record of another scenario."""
    name = f"references[{position}]"
    if known[1] == "report":
        raise invalid(
            name, f"'{name}' is the id of a report; a report refers to receipts of inferences."
        )
    if known[0] != scenario:
        raise invalid(
            name,
            f"'{name}' ({reference}) is not of scenario {scenario!r}; send the report with its own x-reef-scenario.",
        )


def not_a_receipt(position: int, reference: str) -> ApiError:
    """400: no exchange has this receipt, nor ever will."""
    name = f"references[{position}]"
    return invalid(
        name,
        f"'{name}' ({reference[:80]}) is the receipt of no exchange. A receipt is the header "
        "x-reef-agent-record-id of an answer: rec-, 32 hex digits, -, 4 hex digits, "
        "or the id that you sent with the request.",
    )


def _scenario(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise invalid(
            "scenario",
            "'scenario' must be the name of a scenario; the header x-reef-scenario says the same.",
        )
    return check_scenario(value)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        field = _not_finite(raw)
        if field is not None:
            raise invalid(
                field, f"'{field}' is not a finite number; JSON has no NaN and no Infinity."
            ) from None
        raise invalid(None, f"The request body is not valid JSON: {error}.") from None
    if not isinstance(body, dict):
        raise invalid(None, "A report must be a JSON object.")
    check_depth(raw, body)
    return body


def _not_finite(raw: bytes) -> str | None:
    """The first field with a NaN, an Infinity or a number out of range, where that is what keeps `raw` from being JSON."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    for name, value in body.items():
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, float) and not math.isfinite(item):
                return str(name)
            stack += (
                item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
            )
    return None


def _score(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise invalid("score", f"'score' must be a finite number, not {json.dumps(value)[:60]}.")
    return float(value)


def _feedback(value: object) -> str | dict[str, Any] | None:
    if value is None or isinstance(value, (str, dict)):
        return value
    raise invalid("feedback", "'feedback' must be a text or an object.")


def _key(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not is_receipt(value) or shard_in(value) is not None:
        raise invalid(
            "agent_record_id",
            "'agent_record_id' must be 1 to 128 letters, digits, or any of . _ : - and not have the form of Reef's own ids.",
        )
    return value


def _references(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise invalid(
            "references",
            "'references' must be a non-empty list of receipts (the x-reef-agent-record-id of each exchange).",
        )
    if len(value) > MAX_REFERENCES:
        raise invalid(
            "references",
            f"'references' has {len(value)} receipts; at most {MAX_REFERENCES} are allowed.",
        )
    seen = set()
    for position, item in enumerate(value):
        name = f"references[{position}]"
        if not isinstance(item, str) or not is_receipt(item):
            raise invalid(name, f"'{name}' is not a receipt.")
        if item.startswith("rec-") and shard_in(item) is None:
            raise not_a_receipt(position, item)
        if item.startswith("rep-"):
            raise invalid(
                name, f"'{name}' is the id of a report; a report refers to receipts of inferences."
            )
        if item in seen:
            raise invalid(name, f"'{name}' repeats {item}.")
        seen.add(item)
    return tuple(value)


def check_scenario(name: str) -> str:
    """A scenario's name, if it can be one.

    Raises:
        ApiError: 400.
    """
    if not re.fullmatch(SCENARIO_PATTERN, name):
        raise ApiError(
            400,
            f"{name[:80]!r} cannot be a scenario's name: it must match {SCENARIO_PATTERN}.",
            code="invalid_scenario",
            param="scenario",
        )
    return name
