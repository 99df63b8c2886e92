"""One record told from question to release. Pure: what the gateway answered goes in, labelled lines come out."""

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from reefcli.output import ago

Facts = dict[str, Any]
Line = tuple[str, str]
_LONGEST = 2000  # characters of a question or an answer


def of_samples(rows: Sequence[Facts], sample_ids: set[str]) -> list[Facts]:
    """Those steps (`sample_ids`) or releases (`lineage.sample_ids`) that used one of these samples."""
    return [
        row for row in rows if sample_ids & set((row.get("lineage") or row).get("sample_ids", ()))
    ]


def tell(found: Facts) -> Iterator[Line]:
    """(label, text) in the order in which it happened. `found`: a record as the gateway gives it, with `steps` and `releases` added."""
    record = found["record"]
    if record.get("type", "").startswith("feedback"):
        yield (
            "report",
            f"{record['event_id']}, {_when(record.get('at'))}, in scenario {record.get('scenario', '')}",
        )
        yield "about", ", ".join(record.get("references", ()))
        yield "said", _said(record)
    else:
        yield from _exchange(found, record)
        for report in found.get("reports", ()):
            yield (
                "report",
                f"{_said(report)} ({report['report_id']}, {_when(report.get('at'))}{_state_of(report)})",
            )
        if not found.get("reports"):
            yield "report", "none yet"
    for sample in found.get("samples", ()):
        yield from _sample(sample, found)


def _exchange(found: Facts, record: Facts) -> Iterator[Line]:
    yield (
        "record",
        f"{record['event_id']}, {_when(record.get('at'))}, in scenario {record.get('scenario', '')}",
    )
    yield "question", _cut(question(record.get("request")))
    yield "answer", _cut(answer(record.get("response")))
    took = f", {record['duration_ms']:.0f} ms" if record.get("duration_ms") else ""
    yield (
        "outcome",
        f"{record.get('outcome', '')}{took}"
        + (f": {record['error']}" if record.get("error") else ""),
    )
    if usage := record.get("usage"):
        guess = " (counted by Reef)" if usage.get("estimated") else ""
        yield (
            "tokens",
            f"{usage['prompt_tokens']} in the question, {usage['completion_tokens']} in the answer{guess}",
        )
    yield "release", f"{record.get('release_id') or 'none'} answered"
    if found.get("session_id"):
        again = f", another try at {found['retry_of']}" if found.get("retry_of") else ""
        yield "session", f"{found['session_id']}, turn {found['session_turn']}{again}"
    if tags := record.get("tags"):
        yield "tags", ", ".join(f"{name}={value}" for name, value in tags.items())


def _sample(sample: Facts, found: Facts) -> Iterator[Line]:
    """One sample and what became of it."""
    own = {sample["sample_id"]}
    many = (
        f", from {len(sample['record_ids'])} records"
        if len(sample.get("record_ids", ())) > 1
        else ""
    )
    use = (
        f"cannot be trained on: {sample['untrainable']}"
        if sample.get("untrainable")
        else f"trainable, {sample['trained_tokens']} tokens"
    )
    score = "no score" if sample.get("score") is None else f"score {sample['score']:g}"
    yield "sample", f"{sample['sample_id']}: {use}, {score}{many}"
    used = False
    for refusal in found.get("refusals", ()):
        if refusal["sample_id"] in own:
            used = True
            if refusal.get("kept_for_evaluation"):
                yield (
                    "  held out",
                    f"kept for evaluation, which judges candidates of {refusal['recipe']} by it",
                )
                continue
            lag = (
                ""
                if refusal.get("lag") is None
                else f" (the releases had moved on by {refusal['lag']})"
            )
            yield "  refused", f"by {refusal['recipe']}: {refusal['reason']}{lag}"
    releases = of_samples(found.get("releases", ()), own)
    for step in of_samples(found.get("steps", ()), own):
        used = True
        yield (
            "  trained on",
            f"in step {step['step']} of {step['recipe']}, {_when(step.get('at'))}; {_outcome_of(step, releases)}",
        )
    for release in releases:
        used = True
        waits = (
            " (stale: can never be promoted)"
            if release.get("stale")
            else " (waits for `reef promote`)"
        )
        now = " (serves now)" if release.get("current") else waits if release.get("pending") else ""
        yield (
            "  went into",
            f"release {release['release_id']}, {_when(release.get('created_at'))}{now}",
        )
    if not used:
        yield "  so far", "no recipe has used it yet"


def _outcome_of(step: Facts, releases: Sequence[Facts]) -> str:
    """What a step led to, as far as the chain tells."""
    candidate = step.get("candidate_id")
    if not candidate:
        return "no candidate came of it"
    chosen = any(release.get("candidate_id") == candidate for release in releases)
    return f"candidate {candidate}" + (
        "" if chosen else ", which is not in the chain: rejected, or not judged yet"
    )


def question(request: Facts | None) -> str:
    """The last thing that the user said: of chat messages, a prompt, or a responses `input`."""
    if request is None:
        return "(not kept)"
    messages = request.get("messages", request.get("input", request.get("prompt", "")))
    if isinstance(messages, list) and messages and isinstance(messages[0], dict):
        asked = [message for message in messages if message.get("role") == "user"] or messages
        return _text(asked[-1].get("content"))
    return _text(messages)


def answer(response: Facts | None) -> str:
    """What the model said: the first choice, or the content of an answer without choices."""
    if response is None:
        return "(none)"
    choices = response.get("choices")
    if not choices:
        return _text(response.get("content", response.get("output", "")))
    message = choices[0].get("message") or {}
    calls = [
        f"(calls {call['function']['name']} {call['function'].get('arguments', '')})"
        for call in message.get("tool_calls") or ()
    ]
    return (
        "\n".join(filter(None, [_text(message.get("content", choices[0].get("text", ""))), *calls]))
        or "(empty)"
    )


def _text(content: Any) -> str:
    """The words of a content: a string, or parts, of which those without text are named by their type."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "\n".join(_text(part) for part in content)
    if isinstance(content, dict) and "text" in content:
        return str(content["text"])
    if isinstance(content, dict) and "content" in content:
        return _text(content["content"])
    return (
        f"({content['type']})"
        if isinstance(content, dict) and "type" in content
        else orjson.dumps(content).decode()
    )


def _said(report: Facts) -> str:
    """Score and words of a report."""
    score = "no score" if report.get("score") is None else f"score {report['score']:g}"
    words = report.get("feedback")
    if not words:
        return score
    return f"{score}, “{_cut(words if isinstance(words, str) else orjson.dumps(words).decode())}”"


def _state_of(report: Facts) -> str:
    return {
        "parked": ", waits for its records",
        "expired": ", came too long before its records",
    }.get(report.get("state", ""), "")


def _when(at: Any) -> str:
    return ago(at) if at else "at an unknown time"


def _cut(text: str) -> str:
    return (
        text
        if len(text) <= _LONGEST
        else f"{text[:_LONGEST]}… ({len(text)} characters; --json shows all)"
    )
