"""Codex: the files of a harness tree in the agent's own folder, and its binding to Reef."""

# AGENTS.md               rules and memory: Codex puts it before each conversation
# skills/<name>/SKILL.md  the prompt names and describes it; the model reads it if it needs it
# reef.config.toml        the binding, and settings of the tree, as the profile `reef`; config.toml
#                         stays the agent's to write

import json
from collections.abc import Mapping, Sequence
from typing import Any

from reefcommon.harness.admission import Adapter
from reefcommon.harness.agent import HOME, Agent, Package, Place
from reefcommon.harness.render import (
    enabled,
    front_matter,
    merged_config,
    name_of,
    rules_and_memory,
)
from reefcommon.harness.tree import Tree

# Endpoint, key, model and network are the binding's; hooks, servers and shells would run code.
_SETTINGS = frozenset(
    {"hide_agent_reasoning", "model_verbosity", "personality", "tool_output_token_limit"}
)

# They reach the vendor's servers, or offer the model tools that need them.
_OFF = (
    "api_key_model_discovery",
    "apps",
    "image_generation",
    "plugin_sharing",
    "plugins",
    "remote_plugin",
    "skill_mcp_dependency_install",
    "tool_suggest",
)


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
    headless_flags = frozenset({"exec", "e", "--version", "-V", "--help", "-h"})

    def tree_files(self, tree: Tree) -> dict[str, bytes]:
        files = {}
        if text := rules_and_memory(tree):
            files["AGENTS.md"] = text.encode()
        for entry in enabled(tree, "skill"):
            path = f"skills/{name_of(entry)}/SKILL.md"
            files[path] = front_matter(entry, "name", "description")
        return files

    def own_files(self, tree: Tree, place: Place) -> dict[str, bytes]:
        settings = merged_config(tree).get("primary", {})
        return {"reef.config.toml": _toml({**settings, **_binding(place)}).encode()}

    def environment(self) -> Mapping[str, str]:
        return {"CODEX_HOME": HOME}

    def headless(self, task: str) -> Sequence[str]:
        free = ("--skip-git-repo-check", "--sandbox", "danger-full-access")
        return ("exec", "--json", *free, task)


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
        "features": dict.fromkeys(_OFF, False),
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
