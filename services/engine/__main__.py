"""`python -m services.engine`: serve by the settings in the environment; exit 1 when the generation loop crashes."""

import logging
import sys

import structlog
import uvicorn

from services.engine.app import build_app
from services.engine.settings import Settings

log = structlog.get_logger("services.engine")


def main() -> int:
    """Run until a signal or a crash; the exit status."""
    settings = Settings()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[settings.log_level]))
    crashes: list[BaseException] = []

    def on_crash(error: BaseException) -> None:
        log.error("generation_loop_crashed", exc_info=error)
        crashes.append(error)
        server.should_exit = True

    app = build_app(settings, on_crash)
    config = uvicorn.Config(app, host=settings.host, port=settings.port, log_level=settings.log_level.lower(), access_log=False, ws="none")
    server = uvicorn.Server(config)
    server.run()
    return 1 if crashes or not server.started else 0


if __name__ == "__main__":
    sys.exit(main())
