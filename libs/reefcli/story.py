"""One record from question to release, as labelled lines. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from reefcli.output import ago

Facts = dict[str, Any]
Line = tuple[str, str]
_LONGEST = 2000  # characters of a question or an answer
_REPORT_STATES = {
    "parked": ", waits for its records",
    "expired": ", given up, as its records did not come in time (`reef dlq list`)",
}
_UNTRAINABLE = {
    "no_tokens": "no_tokens, the endpoint gave no token ids",
    "not_text": "not_text, the model saw pictures or sound",
    "several_choices": "several_choices, of which the report names none",
    "mixed_versions": "mixed_versions, the weights changed while an answer was sampled",
}
_NOTES = {
    "current": " (serves now)",
    "stale": " (stale: can never be promoted)",
    "pending": " (waits for `reef promote`)",
}


def of_samples(rows: Sequence[Facts], sample_ids: set[str]) -> list[Facts]:
    """Return the steps (`sample_ids`) or releases (`lineage.sample_ids`) that used the samples."""
    return [
        row for row in rows if sample_ids & set((row.get("lineage") or row).get("sample_ids", ()))
    ]


def tell(found: Facts) -> Iterator[Line]:
    """Yield (label, text) in the order of events.

    `found`: the gateway's record with `steps`, `releases` and `rejections`.
    """
    record = found["record"]
    scenario, when = f"scenario {record.get('scenario', '')}", _when(record.get("at"))
    is_report = record.get("type", "").startswith("feedback")
    yield "report" if is_report else "record", f"{record['event_id']}, {when}, in {scenario}"
    if is_report:
        yield "about", ", ".join(record.get("references", ()))
        states = {row["report_id"]: row.get("state", "") for row in found.get("reports", ())}
        state = _REPORT_STATES.get(states.get(record["event_id"], ""), "")
        yield "said", f"{_said(record)}{state}"
    else:
        yield from _exchange(found, record)
        for report in found.get("reports", ()):
            state = _REPORT_STATES.get(report.get("state", ""), "")
            origin = f"{report['report_id']}, {_when(report.get('at'))}{state}"
            yield "report", f"{_said(report)} ({origin})"
        if not found.get("reports"):
            yield "report", "none yet"
    for sample in found.get("samples", ()):
        yield from _sample(sample, found)


def _exchange(found: Facts, record: Facts) -> Iterator[Line]:
    yield "question", _cut(question(record.get("request")))
    yield "answer", _cut(answer(record.get("response")))
    took = f", {record['duration_ms']:.0f} ms" if record.get("duration_ms") else ""
    error = f": {record['error']}" if record.get("error") else ""
    yield "outcome", f"{record.get('outcome', '')}{took}{error}"
    if usage := record.get("usage"):
        guess = " (counted by Reef)" if usage.get("estimated") else ""
        prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
        yield "tokens", f"{prompt} in the question, {completion} in the answer{guess}"
    yield "release", f"{record.get('release_id') or 'none'} answered"
    if found.get("session_id"):
        again = f", another try at {found['retry_of']}" if found.get("retry_of") else ""
        yield "session", f"{found['session_id']}, turn {found['session_turn']}{again}"
    if tags := record.get("tags"):
        yield "tags", ", ".join(f"{name}={value}" for name, value in tags.items())


def _sample(sample: Facts, found: Facts) -> Iterator[Line]:
    own, records = {sample["sample_id"]}, len(sample.get("record_ids", ()))
    many = f", from {records} records" if records > 1 else ""
    use = f"trainable, {sample.get('trained_tokens')} tokens"
    if code := sample.get("untrainable"):
        use = f"cannot be trained on: {_UNTRAINABLE.get(code, code)}"
    score = "no score" if sample.get("score") is None else f"score {sample['score']:g}"
    yield "sample", f"{sample['sample_id']}: {use}, {score}{many}"
    # A release names its samples through its lineage.
    releases = of_samples(found.get("releases", ()), own)
    uses = [
        *(_refused(row) for row in found.get("refusals", ()) if row["sample_id"] in own),
        *(_trained(step, found) for step in of_samples(found.get("steps", ()), own)),
        *(_released(release) for release in releases),
    ]
    yield from uses or [("  so far", "no recipe has used it yet")]


def _refused(row: Facts) -> Line:
    if row.get("kept_for_evaluation"):
        words = f"kept for evaluation, which judges candidates of {row['recipe']} by it"
        return "  held out", words
    lag = row.get("lag")
    moved = "" if lag is None else f" (the releases had moved on by {lag})"
    return "  refused", f"by {row['recipe']}: {row['reason']}{moved}"


def _trained(step: Facts, found: Facts) -> Line:
    name, when = step.get("candidate_id"), _when(step.get("at"))
    outcome = f"candidate {name}{_became(step, found)}" if name else "no candidate came of it"
    return "  trained on", f"in step {step['step']} of {step['recipe']}, {when}; {outcome}"


def _became(step: Facts, found: Facts) -> str:
    first = step["candidate_id"]
    samples = set(step["sample_ids"])
    for release in found.get("releases", ()):
        # on a newer head the candidate of the same samples has another id
        same = set(release["lineage"]["sample_ids"]) == samples
        if (chosen := release.get("candidate_id")) == first or same:
            return "" if chosen == first else f", judged again on a newer head as {chosen}"
    ends = [row for row in found.get("rejections", ()) if row["candidate_id"] == first]
    told = [f", {row['outcome']}: {row['reason']}" for row in ends]
    return told[0] if told else ", not in the chain so far: it may be waiting for a verdict"


def _released(release: Facts) -> Line:
    note = next((text for name, text in _NOTES.items() if release.get(name)), "")
    when = _when(release.get("created_at"))
    return "  went into", f"release {release['release_id']}, {when}{note}"


def question(request: Facts | None) -> str:
    """Return the last user message: of chat messages, a prompt, or a responses `input`."""
    if request is None:
        return "(not kept)"
    # Chat, responses and completions name their input differently.
    messages = request.get("messages", request.get("input", request.get("prompt", "")))
    if isinstance(messages, list) and messages and isinstance(messages[0], dict):
        asked = [message for message in messages if message.get("role") == "user"] or messages
        return _text(asked[-1].get("content"))
    return _text(messages)


def answer(response: Facts | None) -> str:
    """Return the first choice, or the content of an answer without choices."""
    if response is None:
        return "(none)"
    choices = response.get("choices")
    if not choices:
        return _text(response.get("content", response.get("output", "")))
    message = choices[0].get("message") or {}
    text = _text(message.get("content", choices[0].get("text", "")))
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    return "\n".join(filter(None, [text, *calls])) or "(empty)"


def _call(call: Any) -> str:
    # Old records have calls without a type.
    kind = call.get("type", "function") if isinstance(call, dict) else ""
    body = call.get(kind) if isinstance(call, dict) else None
    if not isinstance(body, dict) or "name" not in body:
        return f"(calls {orjson.dumps(call).decode()})"
    return f"(calls {body['name']} {_text(body.get('arguments', body.get('input', '')))})"


def _text(content: Any) -> str:
    """The text of a string or of parts; a part without text is named by its type."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "\n".join(_text(part) for part in content)
    if isinstance(content, dict) and "text" in content:
        return str(content["text"])
    if isinstance(content, dict) and "content" in content:
        return _text(content["content"])
    if isinstance(content, dict) and "type" in content:
        return f"({content['type']})"
    return orjson.dumps(content).decode()


def _said(report: Facts) -> str:
    score = "no score" if report.get("score") is None else f"score {report['score']:g}"
    words = report.get("feedback")
    if not words:
        return score
    return f"{score}, “{_cut(words if isinstance(words, str) else orjson.dumps(words).decode())}”"


def _when(at: Any) -> str:
    return ago(at) if at else "at an unknown time"


def _cut(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}… ({len(text)} characters; --json shows all)"
