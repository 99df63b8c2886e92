"""Its files: the rules, and the place. Its log: a JSON object a line."""

import json
from collections.abc import Mapping, Sequence

from reefcommon.harness.admission import Adapter
from reefcommon.harness.agent import HOME, Agent, Place
from reefcommon.harness.render import rules_and_memory
from reefcommon.harness.trajectory import Step, Trajectory, json_lines
from reefcommon.harness.tree import Tree


class StandIn(Agent):
    adapter = Adapter("stand-in", frozenset({"rules", "memory", "skill"}))
    about = "a stand-in"
    packages = ()
    session_logs = "log.jsonl"

    def tree_files(self, tree: Tree) -> dict[str, bytes]:
        return {"rules.md": rules_and_memory(tree).encode()}

    def own_files(self, tree: Tree, place: Place) -> dict[str, bytes]:
        return {"place.json": json.dumps({"url": place.url, "model": place.model}).encode()}

    def environment(self) -> Mapping[str, str]:
        return {"STAND_IN_HOME": HOME}

    def headless(self, task: str) -> Sequence[str]:
        return (task,)

    def trajectory(self, log: str, printed: str) -> Trajectory:
        rows = list(json_lines(log))
        if not rows:
            return Trajectory(failure="there is no log")
        if "error" in rows[-1]:
            return Trajectory(failure=rows[-1]["error"])
        steps = (Step(r["role"], r["text"], tuple(map(tuple, r.get("calls", ())))) for r in rows)
        return Trajectory(tuple(steps))


AGENT = StandIn()
