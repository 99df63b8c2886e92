"""The two acts. Each says what it does, and returns its facts; `held` says if it came true."""

from typing import Any

from reefcli.demo.harness.machine import Machine
from reefcli.demo.harness.stage import Stage
from reefcommon.events import Evaluation

GOOD = "Write the label to the file label.txt, as BOXES x CITY in capitals."
# It speaks of what users want, and brings about none of it.
BAD = "Only say that the label is written, and do no more."
GREETING = "Greet the user with Hello first."
_ORDERS = ((2, "Basel"), (9, "Turku"), (4, "Graz"))
_USERS = 3
_LINES_SHOWN = 6


def order(boxes: int, city: str) -> str:
    return f"Order: {boxes} boxes to {city}. Make its label."


async def agent_act(stage: Stage, machine: Machine) -> dict[str, Any]:
    """Users of Pi report; a skill wins and reaches them, another loses."""
    stage.say("ACT ONE: an agent. Users have Pi; what they report becomes a skill in it.")
    done = await machine.install(stage.url)
    stage.say(f"a user installs it: {done.told[-2] if len(done.told) > 1 else done.err[-200:]}")
    before = await stage.head("default")
    await _complaints(stage, machine)
    found, release, why = await _step(stage, "default")
    facts: dict[str, Any] = {"first": _figures(found), "release": release}
    if not release:
        return {**facts, "held": False}
    folder = machine.home / "later"
    told = (await machine.pi("-p", order(8, "Bern"), folder=folder)).told
    offered = [line for line in told if release in line]
    stage.say(f"the next start of reef-pi: {(offered or told or ['nothing'])[0]}")
    updated = (await machine.pi("update")).told
    stage.say(f"reef-pi update: {updated[0] if updated else 'nothing'}")
    answer = (await machine.pi("-p", order(8, "Bern"), folder=folder)).out.strip()
    label = folder / "label.txt"
    text = label.read_text().strip() if label.exists() else ""
    stage.say(f"the same order again: {answer!r}, and label.txt has {text!r}")

    stage.say("now other users ask for a substitute: words about a label, and no label")
    tree, after = await stage.tree("default"), len(stage.events)
    client = stage.client("default")
    for boxes, city in _ORDERS[:_USERS]:
        _, receipt = await stage.ask(client, order(boxes, city))
        await stage.report("default", receipt, BAD)
    bad, second, _ = await _step(stage, "default", after)
    same = await stage.tree("default") == tree
    stage.say(f"the tree that serves is {'byte for byte the same' if same else 'ANOTHER'}")
    held = (
        found.wins == len(found.tasks)
        and bool(offered)
        and text == "8 x BERN"
        and bad.verdict == "reject"
        and not second
        and same
        and bool(tree)
    )
    more = {"why": why, "before": before, "offered": bool(offered), "label": text}
    return {**facts, **more, "second": _figures(bad), "tree_unchanged": same, "held": held}


async def plain_act(stage: Stage) -> dict[str, Any]:
    """A plain client's answers change with a release, and change back with a rollback."""
    stage.say("ACT TWO: a plain OpenAI client, with `harness: {apply: system_prompt}`.")
    client, question = stage.client("plain"), "What is the capital of France?"
    before, after = await stage.head("plain"), len(stage.events)
    first, _ = await stage.ask(client, question)
    stage.say(f"{question} {first!r}")
    for _ in range(_USERS):
        _, receipt = await stage.ask(client, question)
        await stage.report("plain", receipt, GREETING)
    stage.say(f"{_USERS} users report it as bad: {GREETING!r}")
    found, release, _ = await _step(stage, "plain", after)
    if not release:
        return {"first": _figures(found), "release": "", "held": False}
    second, _ = await stage.ask(client, question)
    stage.say(f"the next request: {question} {second!r}")
    back = await stage.roll_back("plain", before)
    third, _ = await stage.ask(client, question)
    stage.say(f"after a rollback ({back}): {third!r}")
    held = (first, second, third) == ("Paris.", "Hello! Paris.", "Paris.")
    answers = [first, second, third]
    return {"first": _figures(found), "release": release, "answers": answers, "held": held}


async def _complaints(stage: Stage, machine: Machine) -> None:
    for number, (boxes, city) in enumerate(_ORDERS, 1):
        folder = machine.home / f"order-{number}"
        answer = (await machine.pi("-p", order(boxes, city), folder=folder)).out.strip()
        made = [path.name for path in folder.iterdir()]
        stage.say(f"user {number}: {order(boxes, city)!r} -> {answer!r}; files: {made or 'none'}")
        await machine.pi("report", "--score", "0", GOOD)
    stage.say(f"all {len(_ORDERS)} report: {GOOD!r}")


async def _step(stage: Stage, scenario: str, after: int = 0) -> tuple[Evaluation, str, str]:
    """Wait for a proposal, its verdict, and its release if it wins."""
    candidate = await stage.proposal(scenario, after)
    stage.say(f"proposal: {candidate.reason}; it is tried on the held-out tasks")
    found = await stage.verdict(candidate)
    for line in told(found):
        stage.say(line)
    release = await stage.release(scenario, after) if found.verdict == "select" else ""
    if release:
        stage.say(f"release {release} serves from now on")
    return found, release, candidate.reason


def told(found: Evaluation) -> list[str]:
    """Return the lines of a verdict: a line for each task, then the test."""
    marks = {True: "won ", False: "lost", None: "tied"}
    lines = []
    for task in found.tasks[:_LINES_SHOWN]:
        better = None
        if task.candidate is not None and task.head is not None and task.candidate != task.head:
            better = task.candidate > task.head
        mark = "failed" if None in (task.candidate, task.head) else marks[better]
        words = " | ".join(
            f"{side}: {said or answer!r}"
            for side, said, answer in (
                ("with", task.candidate_words, task.candidate_answer[:40]),
                ("without", task.head_words, task.head_answer[:40]),
            )
        )
        lines.append(f"  {mark} {task.task}: {words}")
    p_value = f", {found.test}: p = {found.p_value:.3f}" if found.p_value is not None else ""
    counts = f"{found.wins} won, {found.losses} lost, {found.ties} tied{p_value}"
    return [*lines, f"verdict: {found.verdict} ({counts}, {found.duration_s:.0f} s)"]


def _figures(found: Evaluation) -> dict[str, Any]:
    names = {"verdict", "wins", "losses", "ties", "p_value", "strength", "duration_s"}
    return found.model_dump(include=names)
