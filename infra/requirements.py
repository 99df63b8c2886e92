"""Print the requirements of pyproject.toml or an extra, without the named packages.

python infra/requirements.py [EXTRA] [-PACKAGE ...]
"""

import re
import sys
import tomllib
from pathlib import Path


def requirements(pyproject: str, extra: str = "", without: tuple[str, ...] = ()) -> list[str]:
    """The requirements as written. Raises KeyError if the extra does not exist."""
    project = tomllib.loads(pyproject)["project"]
    found: list[str] = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return [
        line for line in found if re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] not in without
    ]


if __name__ == "__main__":
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    # A leading minus names a package to leave out.
    without = tuple(word[1:] for word in sys.argv[1:] if word.startswith("-"))
    extras = [word for word in sys.argv[1:] if not word.startswith("-")]
    sys.stdout.write("\n".join(requirements(text, extras[0] if extras else "", without)) + "\n")
