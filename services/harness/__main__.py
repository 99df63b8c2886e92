"""`python -m services.harness`."""

from reefkit.imports import kept

with kept():
    from reefkit.ops import serve
    from services.harness.app import SERVICE, application
    from services.harness.settings import Settings

if __name__ == "__main__":
    raise SystemExit(serve(SERVICE, Settings, application))
