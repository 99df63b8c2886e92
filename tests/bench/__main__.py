"""All benches, one after another: `make bench`, or `python -m tests.bench [NAME …] [--json PATH] [--quick]`.

Each can be run alone and has options of its own: `python -m tests.bench.NAME --help`. Leave the machine alone meanwhile. docs/performance.md
says what the figures mean, how they are taken and what they were.
"""

import argparse
import importlib.util
import sys
from pathlib import Path

import uvloop

from tests.bench import harness

NAMES = ("gateway", "dialects", "ingest", "scale", "engine", "users", "step", "publish", "stack")


def main() -> None:
    """Run them; a bench that fails does not keep the others from running."""
    found = [name for name in NAMES if importlib.util.find_spec(f"tests.bench.{name}")]
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"one of {', '.join(found)}; none: all of them"
    )
    parser.add_argument(
        "--json", type=Path, metavar="PATH", help="write all tables as JSON to this file"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a second or two each, to see that they work; the figures mean nothing",
    )
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(found)):
        parser.error(f"no bench is called {', '.join(unknown)}; there are {', '.join(found)}")
    tables, failed = [], []
    for name in options.names or found:
        try:
            tables.append(
                uvloop.run(
                    harness.measured(
                        importlib.import_module(f"tests.bench.{name}"), ["--quick"] * options.quick
                    )
                )
            )
        except Exception as error:  # noqa: BLE001 - a bench that fails does not hide the others
            harness.tell(f"{name} failed: {error!r}")
            failed.append(name)
    harness.keep(tables, options.json)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
