"""Codex: the files of a harness tree in the agent's own folder, and its binding to Reef."""

# AGENTS.md               rules and memory: Codex puts it before each conversation
# skills/<name>/SKILL.md  the prompt names and describes it; the model reads it if it needs it
# reef.config.toml        the binding, and settings of the tree, as the profile `reef`; config.toml
#                         stays the agent's to write

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reefcommon.harness.admission import Adapter
from reefcommon.harness.agent import HOME, Agent, Package, Place
from reefcommon.harness.render import merged_config, usual_files
from reefcommon.harness.trajectory import Step, Trajectory, json_lines, text_of
from reefcommon.harness.tree import Tree

# Endpoint, key, model and network are the binding's; hooks, servers and shells would run code.
_SETTINGS = frozenset(
    {"hide_agent_reasoning", "model_verbosity", "personality", "tool_output_token_limit"}
)

# They reach the vendor's servers, or offer the model tools that need them.
_OFF = """
api_key_model_discovery apps image_generation plugin_sharing plugins remote_plugin
skill_mcp_dependency_install tool_suggest
"""


class Codex(Agent):
    adapter = Adapter(
        "codex",
        frozenset({"rules", "memory", "skill", "config"}),
        settings={"primary": _SETTINGS},
    )
    about = "a coding agent for the terminal, of OpenAI"
    packages = (Package("@openai/codex", "0.171.0", "bin/codex.js", "16.0.0"),)
    arguments = ("--profile", "reef")
    logs = "sessions"
    session_logs = "sessions/**/*.jsonl"
    headless_flags = frozenset({"exec", "e", "--version", "-V", "--help", "-h"})

    def tree_files(self, tree: Tree) -> dict[str, bytes]:
        return usual_files(tree, "AGENTS.md")

    def own_files(self, tree: Tree, place: Place) -> dict[str, bytes]:
        settings = merged_config(tree).get("primary", {})
        return {"reef.config.toml": _toml({**settings, **_binding(place)}).encode()}

    def environment(self) -> Mapping[str, str]:
        return {"CODEX_HOME": HOME}

    def headless(self, task: str) -> Sequence[str]:
        free = ("--skip-git-repo-check", "--sandbox", "danger-full-access")
        return ("exec", "--json", *free, task)

    def trajectory(self, log: str, printed: str) -> Trajectory:
        rows = list(json_lines(log))
        items = (row.get("payload") for row in rows if row.get("type") == "response_item")
        steps = tuple(step for item in items for step in _steps(item))
        told = [row for row in json_lines(printed) if row.get("type") == "turn.failed"]
        if told:
            error = told[-1].get("error")
            words = error.get("message") if isinstance(error, dict) else error
            return Trajectory(steps, str(words or "the model failed"))
        if not any(step.role == "assistant" for step in steps):
            return Trajectory(steps, "the model gave no answer")
        return Trajectory(steps)


def _steps(item: Any) -> Iterator[Step]:
    if not isinstance(item, dict):
        return
    match item.get("type"):
        # The text for the developer is Codex's own.
        case "message" if item.get("role") in ("user", "assistant"):
            yield Step(item["role"], text_of(item.get("content")))
        case "function_call":
            yield Step("assistant", "", ((str(item.get("name")), _arguments(item)),))
        case "function_call_output":
            yield Step("tool", text_of(item.get("output")))


def _arguments(item: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        given = json.loads(item.get("arguments") or "{}")
    except (TypeError, ValueError):
        return {}
    return given if isinstance(given, dict) else {}


def _binding(place: Place) -> dict[str, Any]:
    provider = {
        "name": "Reef",
        "base_url": f"{place.url}/v1",
        "wire_api": "responses",
        "env_key": "REEF_TOKEN",
        # Codex has the harness in its own files.
        "http_headers": {"x-reef-scenario": place.scenario, "x-reef-harness": "false"},
        "supports_websockets": False,
    }
    return {
        "model": place.model,
        "model_provider": "reef",
        "model_context_window": place.context_tokens,
        "check_for_update_on_startup": False,
        "web_search": "disabled",
        "analytics": {"enabled": False},
        "feedback": {"enabled": False},
        "agents": {"enabled": False},  # its helpers ask for models of the vendor's
        "features": dict.fromkeys(_OFF.split(), False),
        "model_providers": {"reef": provider},
    }


def _toml(values: Mapping[str, Any]) -> str:
    return "".join(f"{_value(name)} = {_value(value)}\n" for name, value in values.items())


def _value(value: Any) -> str:
    # A JSON string, number, boolean or list is TOML's too; an object is an inline table.
    if isinstance(value, Mapping):
        pairs = (f"{_value(name)} = {_value(item)}" for name, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False)


AGENT = Codex()
