"""`python -m services.trainer`."""

import sys

from reefkit.imports import kept

with kept():
    from reefkit.ops import serve
    from services.trainer.app import SERVICE, application
    from services.trainer.settings import Settings

if __name__ == "__main__":
    sys.exit(serve(SERVICE, Settings, application))
