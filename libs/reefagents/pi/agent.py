"""Pi: the files of a harness tree in the agent's own folder, and its binding to Reef."""

# AGENTS.md               rules and memory: Pi puts it before each conversation
# skills/<name>/SKILL.md  the prompt names and describes it; the model reads it if it needs it
# prompts/<name>.md       templates that a user calls as /name
# settings.json           settings of the tree, under those that Reef fixes
# models.json             the binding: one provider, which is the gateway
# extensions/reef.ts      Reef's own: receipts inside the agent

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from reefcommon.harness.admission import Adapter
from reefcommon.harness.agent import HOME, ROOT, Agent, Package, Place
from reefcommon.harness.render import as_json, merged_config, usual_files
from reefcommon.harness.trajectory import Step, Trajectory, json_lines, text_of
from reefcommon.harness.tree import Tree

# Provider, model and network are the binding's; packages, extensions and shells would run code.
_SETTINGS = frozenset(
    {"defaultThinkingLevel", "thinkingBudgets", "steeringMode", "followUpMode", "compaction"}
)
# Pi writes into settings.json what it has shown, and how a user wants it to look.
_OWN = frozenset(
    {"lastChangelogVersion", "extensionChangelogVersions", "theme", "hideThinkingBlock"}
    | {"showCacheMissNotices", "collapseChangelog", "terminal", "images", "markdown", "warnings"}
    | {"tuiMode", "fullscreenExitOutput", "fullscreenScrollbar", "fullscreenCopyOnSelect"}
    | {"fullscreenWheelScrollLines", "doubleEscapeAction", "treeFilterMode", "editorPaddingX"}
    | {"outputPad", "autocompleteMaxVisible", "showHardwareCursor"}
)
_FIXED: Mapping[str, Any] = {
    "defaultProvider": "reef",
    "enableInstallTelemetry": False,
    "enableAnalytics": False,
    "cacheWarming": "off",
    "quietStartup": True,
}
# Versions differ in how a value names a variable; a command means the same to all of them.
_FROM_ENVIRONMENT = "!printenv REEF_TOKEN"


class Pi(Agent):
    adapter = Adapter(
        "pi",
        frozenset({"rules", "memory", "skill", "agent_command", "config"}),
        settings={"primary": _SETTINGS},
    )
    about = "a coding agent for the terminal"
    packages = (
        Package("@earendil-works/pi-coding-agent", "1.6.0", "dist/cli.js", "22.19.0"),
        Package("@mariozechner/pi-coding-agent", "0.73.1", "dist/cli.js", "20.6.0"),
    )
    session_logs = "sessions/**/*.jsonl"
    shared: ClassVar[Mapping[str, frozenset[str]]] = {"settings.json": _OWN}
    headless_flags = frozenset({"-p", "--print", "--mode", "--version", "-v", "--help", "-h"})

    def tree_files(self, tree: Tree) -> dict[str, bytes]:
        return usual_files(tree, "AGENTS.md", "prompts")

    def own_files(self, tree: Tree, place: Place) -> dict[str, bytes]:
        settings = merged_config(tree).get("primary", {})
        return {
            "settings.json": as_json({**settings, **_FIXED, "defaultModel": place.model}),
            "models.json": as_json({"providers": {"reef": _provider(place)}}),
            "extensions/reef.ts": (Path(__file__).parent / "reef.ts").read_bytes(),
        }

    def environment(self) -> Mapping[str, str]:
        return {
            "PI_CODING_AGENT_DIR": HOME,
            "PI_SKIP_VERSION_CHECK": "1",
            # Without it Pi fetches search tools from elsewhere at its start.
            "PI_OFFLINE": "1",
            "REEF_RECEIPTS": f"{ROOT}/receipts",
        }

    def headless(self, task: str) -> Sequence[str]:
        return ("--mode", "json", "-p", task)

    def trajectory(self, log: str, printed: str) -> Trajectory:  # noqa: ARG002
        # `--mode json` ends with 0 whatever happened: the last message of the model says it.
        rows = (row.get("message") for row in json_lines(log) if row.get("type") == "message")
        messages = [row for row in rows if isinstance(row, dict)]
        steps = tuple(step for step in map(_step, messages) if step is not None)
        answers = [row for row in messages if row.get("role") == "assistant"]
        if not answers:
            return Trajectory(steps, "the model gave no answer")
        if answers[-1].get("stopReason") in ("error", "aborted"):
            return Trajectory(steps, str(answers[-1].get("errorMessage") or "the model failed"))
        return Trajectory(steps)


_ROLES: Mapping[str, Any] = {"user": "user", "assistant": "assistant", "toolResult": "tool"}


def _step(message: Mapping[str, Any]) -> Step | None:
    if (role := _ROLES.get(message.get("role", ""))) is None:
        return None
    content = message.get("content")
    parts = [part for part in content or () if isinstance(part, dict)]  # a text has none
    calls = tuple(
        (str(part.get("name")), part.get("arguments") or {})
        for part in parts
        if part.get("type") == "toolCall"
    )
    return Step(role, text_of(content), calls)


def _provider(place: Place) -> dict[str, Any]:
    compat = {
        "supportsDeveloperRole": False,
        "supportsReasoningEffort": False,
        "supportsStore": False,
        "maxTokensField": "max_tokens",
        # Pi's session is Reef's session; the format is for versions from 0.79 on.
        "sendSessionAffinityHeaders": True,
        "sessionAffinityFormat": "openrouter",
    }
    return {
        "baseUrl": f"{place.url}/v1",
        "api": "openai-completions",
        "apiKey": _FROM_ENVIRONMENT,
        # Pi has the harness in its own files.
        "headers": {"x-reef-scenario": place.scenario, "x-reef-harness": "false"},
        "compat": compat,
        "models": [
            {
                "id": place.model,
                "contextWindow": place.context_tokens,
                "maxTokens": min(8192, place.context_tokens // 4),
            }
        ],
    }


AGENT = Pi()
