"""Parts of files that trees are rendered to, the same for every agent."""

import json
from collections.abc import Mapping
from typing import Any

from reefcommon.harness.tree import NAME_PATTERN, Entry, EntryKind, Inadmissible, Tree


def enabled(tree: Tree, kind: EntryKind) -> list[Entry]:
    """Return the entries of a kind that are in force, in tree order."""
    return [entry for entry in tree if entry.kind == kind and not entry.disabled]


def texts(tree: Tree, kind: EntryKind) -> list[str]:
    return [entry.config["text"].strip() for entry in enabled(tree, kind)]


def bullets(tree: Tree, kind: EntryKind) -> str:
    """Return the texts of a kind as a Markdown list."""
    return "\n".join("- " + text.replace("\n", "\n  ") for text in texts(tree, kind))


def rules_and_memory(tree: Tree) -> str:
    """Return one Markdown text for agents that read a single file of instructions."""
    parts = list(texts(tree, "rules"))
    if memory := bullets(tree, "memory"):
        parts.append(f"## Memory\n\n{memory}")
    return "\n\n".join(parts) + "\n" if parts else ""


def front_matter(entry: Entry, *fields: str) -> bytes:
    """Return the entry's text under YAML front matter with these fields."""
    # A JSON string is a YAML string, so a description cannot end the front matter or add a key.
    head = [f"{name}: {json.dumps(entry.config[name], ensure_ascii=False)}" for name in fields]
    return "\n".join(("---", *head, "---", "", entry.config["text"].strip(), "")).encode()


def name_of(entry: Entry) -> str:
    """Return the entry's name, as a file name. Raises Inadmissible."""
    name: str = entry.config["name"]
    if NAME_PATTERN.fullmatch(name) is None:
        raise Inadmissible("a name that cannot be a file name")
    return name


def usual_files(tree: Tree, rules: str, commands: str = "") -> dict[str, bytes]:
    """Return rules and memory in a file of this name, skills, and commands in a folder if named."""
    files = {}
    if text := rules_and_memory(tree):
        files[rules] = text.encode()
    for entry in enabled(tree, "skill"):
        files[f"skills/{name_of(entry)}/SKILL.md"] = front_matter(entry, "name", "description")
    for entry in enabled(tree, "agent_command") if commands else ():
        files[f"{commands}/{name_of(entry)}.md"] = front_matter(entry, "description")
    return files


def merged_config(tree: Tree) -> dict[str, dict[str, Any]]:
    """Return the settings by target; objects are merged, lists and values replaced."""
    merged: dict[str, dict[str, Any]] = {}
    for entry in enabled(tree, "config"):
        target = entry.config["target"]
        if NAME_PATTERN.fullmatch(target) is None:
            raise Inadmissible("a target that cannot be a file name")
        merged[target] = _deep_merge(merged.get(target, {}), entry.config["values"])
    return merged


def _deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            value = _deep_merge(below, value)  # noqa: PLW2901  the merged value replaces it
        result[key] = value
    return result


def as_json(value: object) -> bytes:
    """Return the canonical JSON of a file."""
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()
