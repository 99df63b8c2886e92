"""Claude Code: the files of a harness tree in the agent's own folder, and its binding to Reef."""

# CLAUDE.md               rules and memory: Claude Code puts it before each conversation
# skills/<name>/SKILL.md  the prompt names and describes it; the model reads it if it needs it
# commands/<name>.md      templates that a user calls as /name
# reef.json               the binding, and settings of the tree; read before the user's and a
#                         project's settings, which stay the agent's to write

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reefcommon.harness.admission import Adapter
from reefcommon.harness.agent import HOME, Agent, Package, Place
from reefcommon.harness.render import as_json, merged_config, usual_files
from reefcommon.harness.trajectory import Step, Trajectory, json_lines, text_of
from reefcommon.harness.tree import Tree

# Endpoint, key, model and network are the binding's; hooks, plugins and permissions run code.
_SETTINGS = frozenset({"alwaysThinkingEnabled", "attribution", "language", "outputStyle"})
# Every name by which the agent asks for a model: it has its own for small tasks and for helpers.
_MODELS = """
ANTHROPIC_MODEL ANTHROPIC_SMALL_FAST_MODEL ANTHROPIC_DEFAULT_HAIKU_MODEL
ANTHROPIC_DEFAULT_SONNET_MODEL ANTHROPIC_DEFAULT_OPUS_MODEL CLAUDE_CODE_SUBAGENT_MODEL
"""
_TOOLS = "Bash,Edit,Glob,Grep,NotebookEdit,Read,Skill,Task,TodoWrite,Write"


class ClaudeCode(Agent):
    adapter = Adapter(
        "claude-code",
        frozenset({"rules", "memory", "skill", "agent_command", "config"}),
        settings={"primary": _SETTINGS},
    )
    about = "a coding agent for the terminal, of Anthropic"
    packages = (Package("@anthropic-ai/claude-code", "2.1.332", "bin/claude.exe", ""),)
    arguments = ("--settings", f"{HOME}/reef.json")
    logs = "projects"
    session_logs = "projects/**/*.jsonl"
    headless_flags = frozenset({"-p", "--print", "--version", "-v", "--help", "-h"})

    def tree_files(self, tree: Tree) -> dict[str, bytes]:
        return usual_files(tree, "CLAUDE.md", "commands")

    def own_files(self, tree: Tree, place: Place) -> dict[str, bytes]:
        settings = merged_config(tree).get("primary", {})
        return {"reef.json": as_json({**settings, **_binding(place)})}

    def environment(self) -> Mapping[str, str]:
        return {
            "CLAUDE_CONFIG_DIR": HOME,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            # A line in the system text that differs from request to request.
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            # A user's own key, or another service's switch, would go before the binding.
            "ANTHROPIC_API_KEY": "",
            "ANTHROPIC_AUTH_TOKEN": "",
            "CLAUDE_CODE_USE_BEDROCK": "",
            "CLAUDE_CODE_USE_VERTEX": "",
        }

    def headless(self, task: str) -> Sequence[str]:
        shown = ("--output-format", "stream-json", "--verbose")
        return (*shown, "--allowedTools", _TOOLS, "-p", task)

    def trajectory(self, log: str, printed: str) -> Trajectory:
        # A message comes in several rows; helpers' rows are of their own conversations.
        rows = [row for row in json_lines(log) if row.get("type") in ("user", "assistant")]
        rows = [row for row in rows if not row.get("isSidechain")]
        steps = tuple(step for row in rows for step in _steps(row.get("message")))
        if rows and rows[-1].get("isApiErrorMessage"):
            return Trajectory(steps, steps[-1].text if steps else "the model failed")
        ends = [row for row in json_lines(printed) if row.get("type") == "result"]
        if ends and ends[-1].get("is_error"):
            return Trajectory(steps, str(ends[-1].get("result") or "the model failed"))
        if not any(step.role == "assistant" for step in steps):
            return Trajectory(steps, "the model gave no answer")
        return Trajectory(steps)


def _steps(message: Any) -> Iterator[Step]:
    if not isinstance(message, dict):
        return
    role, content = message.get("role"), message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for part in (part for part in content or () if isinstance(part, dict)):
        match part.get("type"):
            case "text":
                yield Step("assistant" if role == "assistant" else "user", str(part.get("text")))
            case "tool_use":
                yield Step("assistant", "", ((str(part.get("name")), part.get("input") or {}),))
            case "tool_result":
                yield Step("tool", text_of(part.get("content")))


def _binding(place: Place) -> dict[str, Any]:
    headers = {"x-reef-scenario": place.scenario, "x-reef-harness": "false"}
    tokens = max(1, min(8192, place.context_tokens // 4))
    environment = {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_CUSTOM_HEADERS": "\n".join(f"{name}: {text}" for name, text in headers.items()),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(tokens),
        **dict.fromkeys(_MODELS.split(), place.model),
    }
    return {"apiKeyHelper": "printenv REEF_TOKEN", "env": environment, "model": place.model}


AGENT = ClaudeCode()
