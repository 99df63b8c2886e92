"""`python -m services.publisher`."""

from reefkit.imports import kept

with kept():
    from reefkit.ops import serve
    from services.publisher.app import SERVICE, application
    from services.publisher.settings import Settings

if __name__ == "__main__":
    raise SystemExit(serve(SERVICE, Settings, application))
