"""The format of a stored tree: `harness.json`, and files rendered from it."""

# harness.json            every entry, in order
# rules.md                the enabled rules
# skills/<name>/SKILL.md  a folder for each skill, with front matter
# commands/<name>.md      prompt templates
# config/<target>.json    merged settings
# extensions/<name>.ts    code

# The same tree gives the same bytes, and so the same content id.

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reefcommon.artifacts import hash_tree, safe_path
from reefcommon.errors import Poison
from reefcommon.harness.tree import ENTRY_KINDS, NAME_PATTERN, Entry, Inadmissible, Tree

TREE_NAME = "harness.json"
FORMAT = 1
_ENTRY_FIELDS = ("id", "kind", "config", "disabled")
MAX_FILE_BYTES = 1024 * 1024


def tree_to_files(tree: Tree) -> dict[str, bytes]:
    """Return the files of a checked tree, by relative POSIX path. Raises Inadmissible."""
    try:
        entries = [{name: getattr(entry, name) for name in _ENTRY_FIELDS} for entry in tree]
        files = {TREE_NAME: _json({"format": FORMAT, "entries": entries})}
        enabled = [entry for entry in tree if not entry.disabled]
        if rules := [entry.config["text"].strip() for entry in enabled if entry.kind == "rules"]:
            files["rules.md"] = ("\n\n".join(rules) + "\n").encode()
        for target, values in _merged_config(enabled).items():
            files[f"config/{target}.json"] = _json(values)
        files.update(_named_file(each) for each in enabled if each.kind not in ("rules", "config"))
        for name in files:
            safe_path(name)
    except (ValueError, TypeError, KeyError, Poison):
        remedy = "check it with `reefcommon.harness.admission` first"
        raise Inadmissible(f"the tree cannot be rendered: {remedy}") from None
    return files


def files_to_tree(files: Mapping[str, bytes]) -> Tree:
    """Return the tree of exactly these files. Raises Inadmissible."""
    try:
        document = json.loads(files[TREE_NAME])
        if document["format"] != FORMAT:
            raise Inadmissible(f"a harness of another format than {FORMAT}: install a newer Reef")
        tree = tuple(_entry(item) for item in document["entries"])
    except KeyError:
        raise Inadmissible(f"not a harness: {TREE_NAME} is missing, or a part of it") from None
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Inadmissible(f"not a harness: {TREE_NAME} is malformed") from None
    # Rendered again and compared, so that no other file comes with the harness.
    if tree_to_files(tree) != dict(files):
        raise Inadmissible(f"the files beside {TREE_NAME} are not those that it renders to")
    return tree


def write_tree(tree: Tree, directory: Path) -> None:
    for name, body in tree_to_files(tree).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)


def read_tree(directory: Path) -> Tree:
    """Read the tree of a materialised artifact. Raises Poison."""
    names = hash_tree(directory)
    # Before a file is read: its size is not yet known to be sane.
    if any((directory / name).stat().st_size > MAX_FILE_BYTES for name in names):
        raise Inadmissible(f"a file of a harness holds at most {MAX_FILE_BYTES} bytes")
    return files_to_tree({name: (directory / name).read_bytes() for name in names})


def _entry(item: Mapping[str, Any]) -> Entry:
    if item.keys() != set(_ENTRY_FIELDS) or item["kind"] not in ENTRY_KINDS:
        fields = "exactly id, kind, config and disabled, and a known kind"
        raise Inadmissible(f"not a harness: an entry has {fields}")
    entry = Entry(**item)
    if (type(entry.id), type(entry.config), type(entry.disabled)) != (str, dict, bool):
        form = "id is text, its config an object, disabled a boolean"
        raise Inadmissible(f"not a harness: an entry's {form}")
    return entry


def _named_file(entry: Entry) -> tuple[str, bytes]:
    name, text = entry.config["name"], entry.config["text"].strip() + "\n"
    if NAME_PATTERN.fullmatch(name) is None:
        raise Inadmissible("a name that cannot be a file name")
    if entry.kind == "code_extension":
        return f"extensions/{name}.ts", text.encode()
    # A JSON string is a YAML string, so a description cannot end the front matter or add a key.
    description = json.dumps(entry.config["description"], ensure_ascii=False)
    front = f"---\nname: {json.dumps(name)}\ndescription: {description}\n---\n\n"
    path = f"skills/{name}/SKILL.md" if entry.kind == "skill" else f"commands/{name}.md"
    return path, (front + text).encode()


def _merged_config(entries: list[Entry]) -> dict[str, dict[str, Any]]:
    merged: dict[str, dict[str, Any]] = {}
    for entry in entries:
        if entry.kind == "config":
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


def _json(value: object) -> bytes:
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()
