"""`python -m services.evaluator`."""

import sys
from pathlib import Path

from reefcommon.artifacts_open import open_artifact_store
from reefcommon.config import load
from reefcommon.errors import BadConfig
from reefcommon.heads_redis import connect
from reefcommon.ops import run
from reefcommon.settings import SystemSettings
from reefcommon.telemetry import set_up
from services.evaluator.app import SERVICE, application
from services.evaluator.plans import Plans
from services.evaluator.settings import Settings


def main() -> int:
    """Run until SIGTERM. Exit status 2 where a setting is wrong."""
    try:
        system, settings = SystemSettings.load(), Settings.load()
        plans = Plans.load(load(Path(system.config or "serve.yaml")))
        store = open_artifact_store(system)
    except BadConfig as error:
        sys.stderr.write(f"{SERVICE}: {error}\n")
        return 2
    set_up(SERVICE, otlp_endpoint=system.otlp_endpoint)
    app = application(plans, system, settings, connect(system.redis_url), store)
    port = settings.own_port(system.evaluator_url, 8914)
    run(app, host=system.bind_host, port=port, drain_s=settings.drain_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
