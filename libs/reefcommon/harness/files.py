"""The format of a stored tree: `harness.json`, and files rendered from it."""

# harness.json            every entry, in order
# rules.md                the enabled rules
# memory.md               the enabled memory, an item a line
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
from reefcommon.harness.render import (
    as_json,
    bullets,
    enabled,
    front_matter,
    merged_config,
    name_of,
    texts,
)
from reefcommon.harness.tree import ENTRY_KINDS, Entry, Inadmissible, Tree

TREE_NAME = "harness.json"
FORMAT = 1
_ENTRY_FIELDS = ("id", "kind", "config", "disabled")
MAX_FILE_BYTES = 1024 * 1024


def tree_to_files(tree: Tree) -> dict[str, bytes]:
    """Return the files of a checked tree, by relative POSIX path. Raises Inadmissible."""
    try:
        entries = [{name: getattr(entry, name) for name in _ENTRY_FIELDS} for entry in tree]
        files = {TREE_NAME: as_json({"format": FORMAT, "entries": entries})}
        if rules := texts(tree, "rules"):
            files["rules.md"] = ("\n\n".join(rules) + "\n").encode()
        if memory := bullets(tree, "memory"):
            files["memory.md"] = (memory + "\n").encode()
        for target, values in merged_config(tree).items():
            files[f"config/{target}.json"] = as_json(values)
        for skill in enabled(tree, "skill"):
            files[f"skills/{name_of(skill)}/SKILL.md"] = front_matter(skill, "name", "description")
        for command in enabled(tree, "agent_command"):
            head = front_matter(command, "name", "description")
            files[f"commands/{name_of(command)}.md"] = head
        for code in enabled(tree, "code_extension"):
            text = code.config["text"].strip() + "\n"
            files[f"extensions/{name_of(code)}.ts"] = text.encode()
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
