"""`python -m services.trainer`."""

from reefkit.imports import kept

with kept():
    from reefkit.ops import serve
    from services.trainer.app import SERVICE, application
    from services.trainer.settings import Settings

if __name__ == "__main__":
    raise SystemExit(serve(SERVICE, Settings, application))
