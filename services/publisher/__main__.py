"""`python -m services.publisher`."""

import sys
from pathlib import Path

from reefcommon.artifacts_open import open_artifact_store
from reefcommon.config import load
from reefcommon.errors import BadConfig
from reefcommon.heads_redis import connect
from reefcommon.ops import run
from reefcommon.settings import SystemSettings
from reefcommon.telemetry import set_up
from services.publisher.app import application
from services.publisher.settings import Settings


def main() -> int:
    """Run until SIGTERM. Exit status 2 where a setting is wrong."""
    try:
        system, settings = SystemSettings.load(), Settings.load()
        config = load(Path(system.config or "serve.yaml"))
        store = open_artifact_store(system)
    except BadConfig as error:
        sys.stderr.write(f"publisher: {error}\n")
        return 2
    set_up("publisher", otlp_endpoint=system.otlp_endpoint)
    app = application(config, system, settings, connect(system.redis_url), store)
    port = settings.own_port(system.publisher_url, 8915)
    run(app, host=system.bind_host, port=port, drain_s=settings.drain_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
