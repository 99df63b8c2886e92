"""`python -m services.engine`: serve by the settings in the environment (`REEF_ENGINE_...`)."""

import gc
import sys

from reefkit.imports import kept

with kept():
    import uvicorn
    from fastapi import FastAPI

    from reefcommon.errors import BadConfig
    from reefkit.http1 import DeclineUpgrades
    from reefkit.ops import set_up_process
    from reefkit.telemetry import set_up
    from services.engine.app import build_app
    from services.engine.settings import Settings


def main() -> int:
    """Run until a signal. Exit status: 1 after a crash of the loop, 2 if a setting is wrong."""
    try:
        settings = Settings.load()
    except BadConfig as error:
        sys.stderr.write(f"engine: {error}\n")
        return 2
    set_up("engine", level=settings.log_level)
    # The collector would go through torch's objects for each piece of a body of many small values:
    # decoding one took twelve times as long, and no other request is served meanwhile.
    gc.set_threshold(25_000, 20, 20)
    crashes: list[BaseException] = []

    def on_crash(error: BaseException) -> None:
        crashes.append(error)
        server.should_exit = True

    server = uvicorn.Server(server_config(build_app(settings, on_crash), settings))
    set_up_process()
    server.run()
    return 1 if crashes or not server.started else 0


def server_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        ws="none",
        http=DeclineUpgrades,
    )


if __name__ == "__main__":
    sys.exit(main())
