"""`python -m services.harness`."""

import sys

from reefkit.imports import kept

with kept():
    from reefkit.ops import serve
    from services.harness.app import SERVICE, application
    from services.harness.settings import Settings

if __name__ == "__main__":
    sys.exit(serve(SERVICE, Settings, application))
