"""A step of a harness from proposal to verdict, as labelled lines. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from reefcli.output import ago, compared, counted

Facts = dict[str, Any]
Line = tuple[str, str]
_LONGEST = 600


def tell_step(step: Facts) -> Iterator[Line]:
    """Yield (label, text) of a step (`GET /reef/harness/steps/…`)."""
    when = ago(step.get("finished_at") or step.get("opened_at") or "")
    recipe = str(step.get("binding", "")).partition("/")[2]
    yield "step", f"{step['step']} of {recipe}, {when}: {step['state']}"
    if proposal := step.get("proposal"):
        text = proposal.get("text") or proposal.get("reason") or ""
        yield "proposal", f"{proposal['event_id']} {_cut(text)}".rstrip()
    elif step.get("samples"):
        yield "experience", f"{len(step['samples'])}: {', '.join(step['samples'][:8])}"
    yield "base", step["base_release_id"]
    for exchange in step.get("dialogue", ()):
        yield from _exchange(exchange)
    for mutation in step.get("mutations", ()):
        yield "change", _change(mutation)
    if candidate := step.get("candidate_id"):
        yield "candidate", candidate
    if evaluation := step.get("evaluation"):
        yield from tell_evaluation(evaluation)
    if reason := step.get("reason") or step.get("summary"):
        yield "outcome", f"{step['state']}: {reason}"


def tell_evaluation(evaluation: Facts) -> Iterator[Line]:
    """Yield the episodes, task by task with both sides, then the verdict."""
    for task in evaluation.get("tasks", ()):
        yield "task", f"{task['task']}: {_scores((task.get('candidate'), task.get('head')))}"
        for side in ("candidate", "head"):
            said = _cut(task.get(f"{side}_answer") or "")
            words = task.get(f"{side}_words")
            if said or words:
                yield f"  {side}", f"{said}{f' ({_cut(words)})' if words else ''}".strip()
            if run := task.get(f"{side}_run"):
                times = (
                    f"{run.get('seconds', 0):.1f} s, {counted(run.get('requests', 0), 'request')}"
                )
                yield "  its run", f"{run['status']}, {times}"
    strength = f", evidence {evaluation['strength']}" if evaluation.get("strength") else ""
    yield "verdict", f"{evaluation['verdict']} by {evaluation['policy']}{strength}"
    yield "", evaluation.get("reason", "")


def _scores(pair: Iterable[float | None]) -> str:
    candidate, head = pair
    if candidate is None or head is None:
        shown = ["could not run" if one is None else f"{one:g}" for one in (candidate, head)]
        return f"candidate {shown[0]}, head {shown[1]}"
    ours, theirs = compared((candidate, head))
    result = "won" if candidate > head else "lost" if candidate < head else "tied"
    return f"{result}, candidate {ours}, head {theirs}"


def _exchange(exchange: Facts) -> Iterator[Line]:
    asked = exchange.get("asked") or [{}]
    yield f"asked {exchange['model']}", _cut(str(asked[-1].get("content", "")))
    for answer in exchange.get("answers", ()):
        yield "  answer", _cut(answer)


def _change(mutation: Facts) -> str:
    options = mutation.get("options") or {}
    head = " ".join(filter(None, (mutation["op"], options.get("kind"), mutation.get("id"))))
    why = f" ({mutation['reason']})" if mutation.get("reason") else ""
    fields = [f"{name}: {_text(value)}" for name, value in (options.get("config") or {}).items()]
    return "\n".join((head + why, *fields))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
