"""`python -m services.experience`."""

import gc
import sys

from reefcommon import ops, telemetry
from reefcommon.errors import BadConfig
from reefcommon.settings import SystemSettings
from services.experience.app import SERVICE, build
from services.experience.settings import Settings


def main() -> int:
    """Run until SIGTERM."""
    try:
        system, settings = SystemSettings.load(), Settings.load()
    except BadConfig as error:
        sys.stderr.write(f"experience cannot start: {error}\n")
        return 2
    # A batch is many small objects without cycles: collecting after every 700 of them costs a sixth of the time and finds nothing.
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    telemetry.set_up(SERVICE, otlp_endpoint=system.otlp_endpoint)
    ops.run(build(system, settings), host=system.bind_host, port=settings.own_port(system.experience_url, 8911), drain_s=settings.drain_s)
    return 0


if __name__ == "__main__":
    sys.exit(main())
