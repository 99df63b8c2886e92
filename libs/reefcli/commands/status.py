"""`reef status`: what runs, how far behind it is, what learns and what it did last."""

from collections.abc import Iterator
from typing import Any

from reefcli.errors import CommandFailed
from reefcli.gateway import Gateway, find
from reefcli.options import DEFAULT_STATE_DIR, AsJson, StateDir, Url
from reefcli.output import Cell, ago, console, print_asked, print_json, print_table
from reefstack.state import StackState, running, same_process

_RECIPE_COLUMNS = ("recipe", "scenario", "state", "step", "waiting", "last reward", "last error")


def status(
    url: Url = None, state_dir: StateDir = DEFAULT_STATE_DIR, as_json: AsJson = False
) -> None:
    """What runs, how far behind it is, what learns, and what it did last.

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
    # A Reef that was named is somebody else's business than the stack in this directory.
    stack = running(state_dir)
    stack = (
        stack
        if stack is not None and (gateway is None or stack.urls.get("gateway", "") == gateway.url)
        else None
    )
    if as_json:
        processes = (
            {name: same_process(p.pid, p.created) for name, p in stack.processes.items()}
            if stack
            else {}
        )
        print_json(
            {
                "stack": stack.model_dump() if stack else None,
                "alive": processes,
                "gateway": found,
                "problem": problem,
            }
        )
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
    console().print(
        f"{stack.config or 'stack'}: {phase}, started {ago(stack.started_at)}, pid {stack.pid}",
        markup=False,
        soft_wrap=True,
    )
    names = dict.fromkeys((*stack.planned, *stack.processes))
    print_table(
        ("process", "state", "pid", "url"),
        [(name, *_process_row(stack, name), _url(stack, name)) for name in names],
        whole=("url",),
    )


def _url(stack: StackState, name: str) -> str:
    """Where the program is reached: the broker and the store of heads are noted by what they do, not by what they are."""
    if name in ("objectstore", "seaweedfs") and "s3" in stack.ports:
        return f"http://127.0.0.1:{stack.ports['s3']}"
    return stack.urls.get({"tansu": "kafka", "valkey": "redis"}.get(name, name), "")


def _process_row(stack: StackState, name: str) -> tuple[str, int | None]:
    """State and pid of one program."""
    process = stack.processes.get(name)
    if process is None:
        return "starting", None
    if not same_process(process.pid, process.created):
        return "restarting", process.pid
    return "up" if name in stack.ready or not stack.planned else "starting", process.pid


def _print_gateway(body: dict[str, Any]) -> None:
    services = [(name, *_service_row(facts)) for name, facts in body["services"].items()]
    print_table(("service", "state", "lag", "what is wrong"), services)
    if learning := list(_recipe_rows(body["services"])):
        print_table(_RECIPE_COLUMNS, learning)
    if waiting := [
        _waiting_row(candidate)
        for candidate in body["services"].get("evaluator", {}).get("waiting_for") or ()
    ]:
        print_table(("candidate", "scenario", "waits for"), waiting)
    heads = [(scenario, *_head_row(head)) for scenario, head in body["heads"].items()]
    print_table(
        ("scenario", "serves", "operation", "since", "note"),
        heads,
        whole=("serves",),
        empty="no scenario yet",
    )


def _waiting_row(candidate: dict[str, Any]) -> tuple[str, str, str]:
    """A candidate that is not judged yet, and what is missing for that."""
    return candidate["candidate_id"], candidate["scenario"], candidate["reason"]


def _head_row(head: dict[str, Any]) -> tuple[str, str, str, str]:
    """What a scenario serves, and whether anything can change that without a person."""
    note = "" if head.get("learns", True) else "nothing learns here"
    return head["release_id"], head["operation"], ago(head["created_at"]), note


def _service_row(facts: dict[str, Any]) -> tuple[str, str, str]:
    """State, lag by topic, and what fails now: an error that is over is in the log, and in `--json`."""
    failures = facts["failures"]
    lag = ", ".join(f"{topic} {count}" for topic, count in facts.get("lag", {}).items() if count)
    return (
        "not ready" if failures else "ready",
        lag or "0",
        "; ".join(f"{name}: {reason}" for name, reason in failures.items()),
    )


def _recipe_rows(services: dict[str, Any]) -> Iterator[tuple[Cell, ...]]:
    """What learns, as the job hosts say it. A key is `scenario/package.module:Class`."""
    for service in ("trainer", "harness"):
        for key, facts in services.get(service, {}).get("bindings", {}).items():
            scenario, _, recipe = key.partition("/")
            yield (
                recipe,
                scenario,
                _doing(facts),
                facts["step"],
                facts.get("samples", {}).get("waiting", 0),
                facts.get("last_metrics", {}).get("reward_mean"),
                _last_error(facts),
            )


def _last_error(facts: dict[str, Any]) -> str | None:
    """The last error and when it was; what fails now is said of the service."""
    error, at = (facts.get("last_error") or "").partition("\n")[0], facts.get("last_error_at")
    return f"{error} ({ago(at)}; may be over)" if error and at else error or None


def _doing(facts: dict[str, Any]) -> str:
    """The trainer's own word, and whether the last step trained the critic alone."""
    metrics = facts.get("last_metrics", {})
    warming_up = "critic/loss" in metrics and "policy_grad_norm" not in metrics
    return (
        f"{facts['state']} (critic warm-up, {facts['step']} steps so far)"
        if warming_up
        else str(facts["state"])
    )
