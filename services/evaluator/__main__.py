"""`python -m services.evaluator`."""

import sys

from reefkit.imports import kept

with kept():
    from reefkit.ops import serve
    from services.evaluator.app import SERVICE, application
    from services.evaluator.settings import Settings

if __name__ == "__main__":
    sys.exit(serve(SERVICE, Settings, application))
