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

      reef status --json | jq .gateway.spool

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
    services = body.get("services", {})
    rows = [(name, *_service_row(facts)) for name, facts in services.items()] if isinstance(services, dict) else []
    print_table(("service", "state", "lag", "last error"), rows, empty="the gateway reports no services")
    rest = {key: value for key, value in body.items() if key != "services"}
    print_table(("gateway", "value"), [(key, _short(value)) for key, value in rest.items()])


def _service_row(facts: Any) -> tuple[str, str, str]:
    if not isinstance(facts, dict):
        return str(facts), "", ""
    failures = facts.get("failures") or {}
    state = "ready" if not failures and not facts.get("unreachable") else "not ready"
    lag = facts.get("lag") or {}
    shown = ", ".join(f"{topic} {count}" for topic, count in lag.items() if count) if isinstance(lag, dict) else str(lag)
    return state, shown or "0", str(facts.get("last_error") or "")


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_short(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ", ".join(_short(inner) for inner in value)
    return str(value)
