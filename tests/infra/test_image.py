"""infra/Dockerfile: plain instructions, pinned bases, no root at run time, and every copied path there."""

import re
from pathlib import Path

import pytest

from infra.requirements import requirements

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "infra/Dockerfile", ROOT / "infra/offline/Dockerfile"]
SERVICE = FILES[0].read_text()
each = pytest.mark.parametrize("file", FILES, ids=lambda path: str(path.relative_to(ROOT)))


def instructions(text: str) -> list[str]:
    joined = re.sub(r"\\\n", " ", text)
    return [
        line.strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")
    ]


def stages(text: str) -> dict[str, tuple[str, list[str]]]:
    """Name -> (what it starts from, its instructions)."""
    found: dict[str, tuple[str, list[str]]] = {}
    name = ""
    for line in instructions(text):
        if line.startswith("FROM "):
            start, name = re.fullmatch(r"FROM (\S+) AS (\S+)", line).groups()
            found[name] = (start, [])
        else:
            found[name][1].append(line)
    return found


@each
def test_both_builders_build_it(file):
    text = file.read_text()
    assert not re.search(r"^#\s*syntax=", text, re.MULTILINE)
    assert "--mount" not in text
    assert "<<" not in text


@each
def test_bases_are_pinned_and_one(file):
    found = stages(file.read_text())
    assert {start for start, _ in found.values()} - found.keys() == {"python:3.11-slim-bookworm"}


def test_what_runs_is_not_root_and_carries_no_build():
    found = stages(SERVICE)
    assert found["base"][1][-1] == "USER 10001"
    for target in ("service", "embedded", "learn"):
        start, lines = found[target]
        assert start == "base"
        assert lines == [f"COPY --from={target}-environment /opt/reef /opt/reef"]


def test_torch_is_in_one_target_only():
    found = stages(SERVICE)
    with_torch = {
        name
        for name, (_, lines) in found.items()
        if any("torch/torch.sh" in line for line in lines)
    }
    assert with_torch == {"learn-dependencies"}
    assert found["learn-environment"][0] == "learn-dependencies"
    assert found["service-environment"][0] == "service-dependencies"
    lock = (ROOT / "infra/setup.sh").read_text()
    for pin in re.findall(r"[\w-]+==[\d.]+", SERVICE):
        assert pin in lock, f"{pin} in the image, another version in infra/setup.sh"


def test_what_is_copied_exists_and_is_sent_to_the_builder():
    allowed = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    for line in instructions(SERVICE):
        if line.startswith("COPY ") and "--from=" not in line:
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists() or "*" in source, source
                assert source in allowed, f"{source} is left out by .dockerignore"


def test_the_requirements_of_the_image_are_those_of_the_project():
    pyproject = (ROOT / "pyproject.toml").read_text()
    left_out = set(requirements(pyproject)) - set(requirements(pyproject, without=("chdb",)))
    assert [line.split(">=")[0] for line in left_out] == ["chdb"]
    assert any(line.startswith("peft") for line in requirements(pyproject, "learn"))
    with pytest.raises(KeyError):
        requirements(pyproject, "no-such-extra")


def test_every_requirement_is_in_the_lock():
    """pip takes `-c requirements.lock` as bounds for what it installs: a name that is missing there would be unpinned."""
    pyproject = (ROOT / "pyproject.toml").read_text()
    locked = {
        line.split("==")[0].lower()
        for line in (ROOT / "requirements.lock").read_text().splitlines()
    }
    for line in [*requirements(pyproject), *requirements(pyproject, "learn")]:
        assert re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower() in locked, line
