"""`python -m services.evaluator`."""

from reefkit.imports import kept

with kept():
    from reefkit.ops import serve
    from services.evaluator.app import SERVICE, application
    from services.evaluator.settings import Settings

if __name__ == "__main__":
    raise SystemExit(serve(SERVICE, Settings, application))
