"""`python -m services.experience`."""

import gc

from reefkit.imports import kept

with kept():
    from reefkit.ops import serve
    from services.experience.app import SERVICE, build
    from services.experience.settings import Settings

if __name__ == "__main__":
    # A batch is many small objects without cycles. Collecting after every 700 of them takes a
    # sixth of the time, and frees none.
    gc.set_threshold(100_000, 20, 20)
    raise SystemExit(serve(SERVICE, Settings, build))
