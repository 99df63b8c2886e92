"""Trees by digest: the same bytes are the same content; what does not match or escapes is refused."""

import pytest

from reefcommon import artifacts
from reefcommon.errors import Poison


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    (root / "sub").mkdir(parents=True)
    (root / "a.bin").write_bytes(b"weights")
    (root / "sub" / "b.json").write_text("{}")
    return root


def test_same_bytes_same_content_whatever_the_manifest_says(tree):
    first = artifacts.describe(tree, "lora", metrics={"reward": 1.0})
    (tree / artifacts.MANIFEST_NAME).write_text(first.model_dump_json())
    second = artifacts.describe(tree, "lora")
    assert first.content_id == second.content_id
    assert set(first.files) == {"a.bin", "sub/b.json"}
    assert artifacts.describe(tree, "harness").content_id != first.content_id


@pytest.mark.parametrize("damage", ["change", "remove", "add"])
def test_damage_is_found_and_named(tree, damage):
    manifest = artifacts.describe(tree, "lora")
    victim = {"change": tree / "a.bin", "remove": tree / "sub" / "b.json", "add": tree / "new.txt"}[
        damage
    ]
    victim.unlink() if damage == "remove" else victim.write_bytes(b"other")
    with pytest.raises(Poison, match=victim.name):
        artifacts.verify(tree, manifest)


def test_links_and_empty_trees_are_refused(tree, tmp_path):
    (tree / "link").symlink_to(tree / "a.bin")
    with pytest.raises(Poison, match="link"):
        artifacts.hash_tree(tree)
    (tmp_path / "empty").mkdir()
    with pytest.raises(Poison, match="without files"):
        artifacts.hash_tree(tmp_path / "empty")


@pytest.mark.parametrize(
    "name", ["", "/etc/passwd", "../x", "a/../../x", "a\nb", "a\x00b", "a\\b", "a\x7f"]
)
def test_a_path_that_escapes_is_refused(name):
    with pytest.raises(Poison, match="not a path"):
        artifacts.safe_path(name)


def test_a_tree_is_put_in_place_once(tree, tmp_path):
    place = tmp_path / "store" / "content"
    artifacts.replace_tree(tree, place)
    assert (place / "a.bin").read_bytes() == b"weights"
    again = tmp_path / "again"
    again.mkdir()
    (again / "a.bin").write_bytes(b"late")
    artifacts.replace_tree(again, place)
    assert (place / "a.bin").read_bytes() == b"weights", "what was there first is kept"
    assert not again.exists()
