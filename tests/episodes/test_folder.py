"""What a verifier reads of an episode's folder: bounded text, and none of the host's."""

import os
from pathlib import Path

import pytest

from reefcommon.errors import Poison
from reefkit.episodes.folder import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder.make(tmp_path)


def test_links_and_other_than_text_are_left_out(folder: Folder, tmp_path: Path) -> None:
    outside = tmp_path / "secret.txt"
    outside.write_text("secret")
    (folder.work / "link").symlink_to(outside)
    (folder.work / "far").symlink_to(tmp_path, target_is_directory=True)
    (folder.work / "bytes").write_bytes(b"\xff\xfe")
    (folder.work / "long").write_text("x" * 100_000)
    (folder.work / "a").mkdir()
    (folder.work / "a/b.txt").write_text("text")
    assert folder.texts() == {"a/b.txt": "text"}


def test_files_are_bounded_in_number_and_size(folder: Folder) -> None:
    for number in range(100):
        (folder.work / f"{number:03}").write_text("x" * 10_000)
    assert sum(map(len, folder.texts().values())) <= 512 * 1024
    for path in folder.work.iterdir():
        path.write_text("x")
    assert len(folder.texts()) == 64


def test_a_log_outside_of_the_agents_home_is_not_read(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/log.jsonl").write_text("secret")
    (folder.agent_home / "sessions").symlink_to(tmp_path / "logs", target_is_directory=True)
    assert folder.log("sessions/*.jsonl") == ""
    (folder.agent_home / "log.jsonl").write_text("{}")
    assert folder.log("log.jsonl") == "{}"


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x"])
def test_a_tasks_file_stays_in_the_folder(folder: Folder, name: str) -> None:
    with pytest.raises(Poison):
        folder.write({name: b"x"}, folder.work)


def test_a_folder_without_end_is_read_measured_and_removed(folder: Folder) -> None:
    """Python's own walk ends at 1,000 levels with an error that nobody expects."""
    (folder.work / "a.txt").write_text("text")
    number = os.open(folder.work, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=number)
        inner = os.open("d", os.O_RDONLY, dir_fd=number)
        os.close(number)
        number = inner
    os.close(number)
    assert folder.texts() == {"a.txt": "text"}
    assert folder.size() > 2**40, "what hides at the end of it cannot be measured"
    (folder.work / "locked").mkdir(mode=0)
    folder.remove()
    assert not folder.root.exists()


def test_a_folder_in_place_of_a_log_is_no_log(folder: Folder) -> None:
    (folder.agent_home / "log.jsonl").mkdir()
    assert folder.log("*.jsonl") == ""


def test_a_name_that_is_no_text_is_shown_readably(folder: Folder) -> None:
    """An event holds no half characters, which Python makes of such bytes."""
    os.close(os.open(os.fsencode(folder.work) + b"/a\xff", os.O_CREAT | os.O_WRONLY))
    assert folder.texts() == {"a\N{REPLACEMENT CHARACTER}": ""}
