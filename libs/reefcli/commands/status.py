"""`reef status`: what runs, how far behind it is, what it did last."""

from typing import Any

from reefcli.errors import CommandFailed
from reefcli.gateway import find
from reefcli.options import DEFAULT_STATE_DIR, AsJson, StateDir, Url
from reefcli.output import ago, console, print_json, print_table
from reefcli.stack.state import StackState, read_state, same_process


def status(url: Url = None, state_dir: StateDir = DEFAULT_STATE_DIR, as_json: AsJson = False) -> None:
    """What runs, how far behind it is, and what it did last.

    Examples:

      reef status

      reef status --json | jq .gateway.heads

      reef status --url https://reef.example.com
    """
    stack = read_state(state_dir)
    alive = stack is not None and stack.alive
    try:
        gateway: dict[str, Any] | None = find(url, state_dir).get("/reef/status")
        problem = ""
    except CommandFailed as error:
        gateway, problem = None, str(error)
    if as_json:
        processes = {name: same_process(p.pid, p.created) for name, p in stack.processes.items()} if stack and alive else {}
        print_json({"stack": stack.model_dump() if stack and alive else None, "alive": processes, "gateway": gateway, "problem": problem})
    else:
        if stack is not None and alive:
            _print_stack(stack)
        if gateway is not None:
            _print_gateway(gateway)
    if problem:
        raise CommandFailed(problem)


def _print_stack(stack: StackState) -> None:
    console().print(f"{stack.config or 'stack'}: {stack.phase}, started {ago(stack.started_at)}, pid {stack.pid}", markup=False)
    rows = [
        (name, "up" if same_process(p.pid, p.created) else "restarting", p.pid, stack.urls.get(name, ""))
        for name, p in stack.processes.items()
    ]
    print_table(("process", "state", "pid", "url"), rows)


def _print_gateway(body: dict[str, Any]) -> None:
    services = [(name, *_service_row(facts)) for name, facts in body["services"].items()]
    print_table(("service", "state", "lag", "what is wrong"), services)
    heads = [(scenario, head["release_id"], head["operation"], ago(head["created_at"])) for scenario, head in body["heads"].items()]
    print_table(("scenario", "serves", "operation", "since"), heads, empty="no scenario yet")


def _service_row(facts: dict[str, Any]) -> tuple[str, str, str]:
    """State, lag by topic, and failures or the last error. A service that does not answer has failures alone."""
    failures = facts["failures"]
    lag = ", ".join(f"{topic} {count}" for topic, count in facts.get("lag", {}).items() if count)
    wrong = "; ".join(f"{name}: {reason}" for name, reason in failures.items())
    return (
        "not ready" if failures else "ready",
        lag or "0",
        wrong or f"(earlier) {facts['last_error']}" if facts.get("last_error") else wrong,
    )
