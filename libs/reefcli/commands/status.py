"""`reef status`: the programs, the services, the recipes and the heads."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reefcli.commands.releases import traffic
from reefcli.errors import CommandFailed
from reefcli.gateway import Gateway, find
from reefcli.options import DEFAULT_STATE_DIR, AsJson, StateDir, Url
from reefcli.output import Cell, ago, console, counted, print_asked, print_json, print_table
from reefstack.state import StackState, running, same_process

_MODEL_COLUMNS = ("model", "service", "calls", "tokens", "cost", "budget")
_RECIPE_COLUMNS = ("recipe", "scenario", "state", "step", "waiting", "last reward", "last error")


def status(
    url: Url = None, state_dir: StateDir = DEFAULT_STATE_DIR, as_json: AsJson = False
) -> None:
    """The programs that run, their lag, the recipes, their last step and error, the heads.

    Exit code 0 when the gateway answers; 1 otherwise, also while a stack is still starting.

    Examples:

      reef status

      reef status --json | jq .gateway.heads

      reef status --url https://reef.example.com
    """
    gateway: Gateway | None = None
    found: dict[str, Any] | None = None
    problem = ""
    try:
        gateway = find(url, state_dir)
        found = gateway.get("/reef/status")
    except CommandFailed as error:
        problem = str(error)
    stack = running(state_dir)
    if stack and gateway and stack.urls.get("gateway", "") != gateway.url:
        stack = None  # another Reef was named than the one in this directory
    if as_json:
        processes = stack.processes.items() if stack else ()
        alive = {name: same_process(p.pid, p.created) for name, p in processes}
        shown = stack.model_dump() if stack else None
        print_json({"stack": shown, "alive": alive, "gateway": found, "problem": problem})
    else:
        if stack is not None:
            _print_stack(stack)
        if found is not None and gateway is not None:
            _print_gateway(found)
            print_asked(gateway.url)
    if problem:
        raise CommandFailed(problem)


def _print_stack(stack: StackState) -> None:
    phase = f"starting, {stack.progress}" if stack.phase == "starting" else stack.phase
    text = f"{stack.config or 'stack'}: {phase}, started {ago(stack.started_at)}, pid {stack.pid}"
    console().print(text, markup=False, soft_wrap=True)
    names = dict.fromkeys((*stack.planned, *stack.processes))
    rows = [(name, *_process_row(stack, name), _url(stack, name)) for name in names]
    print_table(("process", "state", "pid", "url"), rows, whole=("url",))


def _url(stack: StackState, name: str) -> str:
    if name in ("objectstore", "seaweedfs") and "s3" in stack.ports:
        return f"http://127.0.0.1:{stack.ports['s3']}"
    # The URLs of broker and heads are noted by role, not by product.
    return stack.urls.get({"tansu": "kafka", "valkey": "redis"}.get(name, name), "")


def _process_row(stack: StackState, name: str) -> tuple[str, int | None]:
    process = stack.processes.get(name)
    if process is None:
        return "starting", None
    if not same_process(process.pid, process.created):
        return "restarting", process.pid
    # A stack of an older version has no plan: its processes count as up.
    return "up" if name in stack.ready or not stack.planned else "starting", process.pid


def _print_gateway(body: dict[str, Any]) -> None:
    services = [(name, *_service_row(facts)) for name, facts in body["services"].items()]
    print_table(("service", "state", "lag", "what is wrong"), services)
    if learning := list(_recipe_rows(body["services"])):
        print_table(_RECIPE_COLUMNS, learning)
    if models := list(_model_rows(body["services"])):
        print_table(_MODEL_COLUMNS, models)
    if waiting := list(_waiting_rows(body["services"].get("evaluator", {}))):
        print_table(("candidate", "scenario", "waits for", "since"), waiting)
    heads = [(scenario, *_head_row(scenario, head)) for scenario, head in body["heads"].items()]
    columns = ("scenario", "serves", "operation", "since", "note")
    print_table(columns, heads, whole=("serves",), empty="no scenario yet")


def _waiting_rows(evaluator: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    candidates = evaluator.get("waiting_for", ())
    for row in candidates:
        yield row["candidate_id"], row["scenario"], row["reason"], ago(row["since"])
    # Reports are counted before the first candidate needs them.
    for scenario in evaluator.get("held_out", {}).keys() - {row["scenario"] for row in candidates}:
        yield "(none yet)", scenario, evaluator["held_out"][scenario], ""


def _head_row(scenario: str, head: dict[str, Any]) -> tuple[str, str, str, str]:
    notes = [] if head.get("learns", True) else ["nothing learns here"]
    if (held := head.get("held")) is not None:
        notes.append(f"held{held and f' ({held})'}: reef resume {scenario}")
    if pending := head.get("pending"):
        notes.append(f"{pending[0]} waits for a person: reef promote {scenario} {pending[0]}")
    gets = {name: traffic({"traffic": row}) for name, row in head.get("traffic", {}).items()}
    others = [
        f"{name} gets {words or '100 %'}"
        for name, words in gets.items()
        if name != head["release_id"]
    ]
    if others:
        notes.append(f"canary: {', '.join(others)}: reef canary {scenario} --end")
    return head["release_id"], head["operation"], ago(head["created_at"]), "; ".join(notes)


def _service_row(facts: dict[str, Any]) -> tuple[str, str, str]:
    """State, lag by topic, and the present failure."""
    failures = facts["failures"]
    lag = ", ".join(f"{topic} {count}" for topic, count in facts.get("lag", {}).items() if count)
    wrong = [f"{name}: {reason}" for name, reason in failures.items()]
    untagged = facts.get("untagged_sessions", {})
    wrong += [f"scenario {name}: {words}" for name, words in untagged.items()]
    if parked := facts.get("parked_reports"):
        oldest = facts.get("oldest_parked_report") or {}
        until = f"{oldest['given_up_at'][:19]}Z, then `reef dlq list` has it" if oldest else ""
        end = f", the oldest until {until}" if until else ""
        wrong.append(f"{counted(parked, 'report')} waiting for records{end}")
    return "not ready" if failures else "ready", lag or "0", "; ".join(wrong)


def _recipe_rows(services: dict[str, Any]) -> Iterator[tuple[Cell, ...]]:
    for service in ("trainer", "harness"):
        for key, facts in services.get(service, {}).get("bindings", {}).items():
            scenario, _, recipe = key.partition("/")
            samples = facts.get("samples", {})
            waiting: Cell = samples.get("waiting", 0)
            if unsignalled := samples.get("unsignalled"):
                waiting = f"{waiting}, {unsignalled} without a signal"
            reward = facts.get("last_metrics", {}).get("reward_mean")
            figures = (_doing(facts), facts["step"], waiting, reward, _last_error(facts))
            yield recipe, scenario, *figures


def _model_rows(services: dict[str, Any]) -> Iterator[tuple[Cell, ...]]:
    """The models that recipes have asked, or may ask within a limit."""
    for service in ("trainer", "harness"):
        for name, facts in services.get(service, {}).get("models", {}).items():
            used, limits = facts["used"], facts["limits"]
            if not used["calls"] and not limits:
                continue
            amounts = [
                f"{used[kind]:g} of {limits[kind]:g}" if kind in limits else f"{used[kind]:g}"
                for kind in ("calls", "tokens", "cost")
            ]
            spent = ", ".join(facts["spent"])
            note = f"used up: {spent}; raise it in serve.yaml and restart" if spent else ""
            yield name, service, *amounts, note


def _last_error(facts: dict[str, Any]) -> str | None:
    """The last error in one line: file, line and age."""
    lines, at = (facts.get("last_error") or "").splitlines(), facts.get("last_error_at")
    if not lines:
        return None
    places = [
        f" ({Path(found[1]).name}:{found[2]})"
        for line in lines
        if (found := re.match(r'\s*File "(.+?)", line (\d+)', line))
    ]
    # A bare traceback ends with the error; otherwise the first line is a summary.
    error = lines[-1] if re.match(r"Traceback|\s*File ", lines[0]) else lines[0]
    if places and ".py:" not in error:
        error += places[-1]
    return f"{error} ({ago(at)}; may be over)" if at else error


def _doing(facts: dict[str, Any]) -> str:
    metrics = facts.get("last_metrics", {})
    warming_up = "critic/loss" in metrics and "policy_grad_norm" not in metrics
    of = facts.get("knobs", {}).get("critic_warmup_steps", "?")
    note = f" (critic warm-up, {facts['step']} of {of} steps)" if warming_up else ""
    signals = facts.get("signals") or {}
    waits = f"; signals wait: {signals['waits']}" if signals.get("waits") else ""
    since = f" (proposed {ago(facts['proposed_at'])})" if facts.get("proposed_at") else ""
    return f"{facts['state']}{since}{note}{waits}"
