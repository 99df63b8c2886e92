"""infra/torch.sh: the CPU build unless CUDA is asked for, from an index or from a folder."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "infra" / "torch.sh"


def asked(tmp_path: Path, *, has_cpu: bool = True, **env: str) -> list[str]:
    """The arguments of each call of a pip that has, or has not, a build marked +cpu."""
    pip, log = tmp_path / "pip", tmp_path / "log"
    pip.write_text(
        f'#!/bin/sh\necho "$@" >> {log}\ncase "$*" in *+cpu) exit {int(not has_cpu)} ;; esac\n'
    )
    pip.chmod(0o755)
    found = subprocess.run(
        ["sh", str(SCRIPT), str(pip)], env={"PATH": "/usr/bin:/bin", **env}, check=False
    )
    assert found.returncode == 0
    return log.read_text().splitlines()


def test_the_cpu_build_is_the_default(tmp_path):
    (call,) = asked(tmp_path)
    assert call.endswith("torch==2.13.0+cpu")
    assert "--index-url" not in call


def test_one_setting_takes_cuda(tmp_path):
    (call,) = asked(tmp_path, TORCH="cuda")
    assert call.endswith("torch==2.13.0")


def test_a_registry_without_a_cpu_build_gives_what_it_has(tmp_path):
    assert [call.split()[-1] for call in asked(tmp_path, has_cpu=False)] == [
        "torch==2.13.0+cpu",
        "torch==2.13.0",
    ]


@pytest.mark.parametrize("folder", [True, False])
def test_an_index_may_be_a_folder(tmp_path, folder):
    place = str(tmp_path) if folder else "https://example.org/cpu"
    (call,) = asked(tmp_path, TORCH_INDEX=place)
    assert ("--find-links " if folder else "--index-url ") + place in call
