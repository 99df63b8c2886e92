"""A tree in the artifact store: the same bytes for the same tree, and nothing that does not belong to it."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reefcommon.artifacts import content_id, describe, hash_tree, materialize
from reefcommon.errors import Poison
from reefcommon.harness.files import files_to_tree, read_tree, tree_to_files, write_tree
from reefcommon.harness.tree import Entry, Inadmissible
from reefkit.artifacts.git import GitArtifactStore

TREE = (
    Entry("r1", "rules", {"text": "Be brief."}),
    Entry(
        "s1",
        "skill",
        {"name": "sieve", "description": 'say: "primes"', "text": "Cross out multiples."},
    ),
    Entry(
        "p1",
        "agent_command",
        {"name": "review", "description": "look again", "text": "Look at $1."},
    ),
    Entry("c1", "config", {"target": "primary", "values": {"ui": {"theme": "dark"}}}),
    Entry("c2", "config", {"target": "primary", "values": {"ui": {"width": 80}}}),
    Entry("x1", "code_extension", {"name": "probe", "text": "export default () => 1;"}),
    Entry("r2", "rules", {"text": "Not now."}, disabled=True),
)
TEXT = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=30)
JSON = st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=5)  # fmt: skip
RULES = st.builds(lambda text, disabled: ("rules", {"text": text}, disabled), TEXT, st.booleans())
CONFIGS = st.builds(lambda values, target: ("config", {"target": target, "values": values}, False),
                    st.dictionaries(TEXT, JSON, max_size=3), st.sampled_from(["primary", "models"]))  # fmt: skip
TREES = st.lists(RULES | CONFIGS, max_size=5).map(
    lambda parts: tuple(Entry(f"e{i}", *part) for i, part in enumerate(parts))
)


@given(TREES)
def test_a_tree_comes_back_as_it_was(tree):
    assert files_to_tree(tree_to_files(tree)) == tree


def test_every_kind_is_rendered(tmp_path):
    write_tree(TREE, tmp_path)
    assert set(hash_tree(tmp_path)) == {
        "harness.json", "rules.md", "skills/sieve/SKILL.md", "commands/review.md", "config/primary.json", "extensions/probe.ts",
    }  # fmt: skip
    assert (tmp_path / "rules.md").read_text() == "Be brief.\n"
    assert (
        (tmp_path / "skills/sieve/SKILL.md")
        .read_text()
        .startswith('---\nname: "sieve"\ndescription: "say: \\"primes\\""\n---\n\nCross')
    )
    assert '"theme": "dark",\n    "width": 80' in (tmp_path / "config/primary.json").read_text()
    assert read_tree(tmp_path) == TREE


def test_the_content_id_is_stable(tmp_path):
    """Whatever the order of keys, wherever it is written; pinned, since a release chain refers to it for ever."""
    shuffled = (TREE[0], Entry("s1", "skill", dict(reversed(TREE[1].config.items()))), *TREE[2:])
    ids = set()
    for number, tree in enumerate((TREE, shuffled, TREE)):
        write_tree(tree, tmp_path / str(number))
        ids.add(describe(tmp_path / str(number), "harness").content_id)
    assert ids == {"harness-43c6718efca88a6fb2bd1a1b96358d5d"}
    write_tree((), tmp_path / "empty")
    assert (
        describe(tmp_path / "empty", "harness").content_id
        == "harness-9f471f7193cf56767c099b6f6fdc9f8e"
    )
    assert describe(tmp_path / "empty", "harness").content_id == content_id(
        "harness", hash_tree(tmp_path / "empty")
    )


def test_it_goes_through_the_artifact_store(tmp_path):
    write_tree(TREE, tmp_path / "made")
    store = GitArtifactStore(tmp_path / "store.git")
    content = store.put(tmp_path / "made", describe(tmp_path / "made", "harness"), "default")
    assert read_tree(materialize(store, content, "default", tmp_path / "fetched")) == TREE


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a\nb", "extra.md", "skills/other/SKILL.md"])
def test_h2_a_file_that_the_tree_does_not_render_to_is_refused(name):
    """H2. Paths that leave the tree, and anything that rides along."""
    with pytest.raises(Inadmissible, match="not those that it renders to"):
        files_to_tree({**tree_to_files(TREE), name: b"x"})


@pytest.mark.parametrize("name", ["../x", "..", "/etc/x", "a\nb", "a\\b", "a/b"])
@pytest.mark.parametrize("kind", ["skill", "agent_command", "code_extension"])
def test_h2_an_entry_whose_name_leaves_the_tree_is_not_rendered(name, kind, tmp_path):
    """H2. Even where admission was left out, nothing is written."""
    tree = (Entry("e", kind, {"name": name, "description": "d", "text": "t"}),)
    with pytest.raises(Inadmissible, match="cannot be rendered"):
        write_tree(tree, tmp_path / "t")
    assert not (tmp_path / "t").exists()


def test_h2_a_link_in_the_tree_is_refused(tmp_path):
    """H2. A symlink out, to a file or to a folder, and a named pipe."""
    for number, make in enumerate(
        (lambda p: p.symlink_to("/etc/passwd"), lambda p: p.symlink_to("/etc"), os.mkfifo)
    ):
        directory = tmp_path / str(number)
        write_tree(TREE, directory)
        make(directory / "link")
        with pytest.raises(Poison, match="regular files only"):
            read_tree(directory)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"format": 2, "entries": []}', b'{"format": 1, "entries": [{}]}', b'{"format": 1, "entries": 5}',
     b'{"format": 1, "entries": [{"id": "a", "kind": "hook", "config": {}, "disabled": false}]}', b"[" * 100_000,
     b'{"format": 1, "entries": [{"id": 7, "kind": "rules", "config": {"text": "t"}, "disabled": false}]}', b"\xff"],
)  # fmt: skip
def test_what_is_not_a_harness_is_refused(body):
    with pytest.raises(Inadmissible):
        files_to_tree({"harness.json": body})
