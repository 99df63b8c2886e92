"""`python -m infra.docs [--write]`."""

import sys

from infra.docs.pages import PAGES, current


def main() -> int:
    """Exit status 1 if a page is not current, without `--write`."""
    stale = 0
    for path in PAGES:
        after = current(path)
        if "--write" in sys.argv:
            path.write_text(after, encoding="utf-8")
        else:
            stale |= int(path.read_text(encoding="utf-8") != after)
    return stale


if __name__ == "__main__":
    sys.exit(main())
