"""A host that runs one episode, for the test that kills it: `python -m tests.episodes.host`."""

import asyncio
import sys
from pathlib import Path

from reefkit.episodes.relay import Upstream
from reefkit.episodes.runner import Seat
from tests.episodes.conftest import runner_at, task

if __name__ == "__main__":
    place, isolation, url = sys.argv[1:]
    seat = Seat(Upstream(url), "default", "reef")
    asyncio.run(runner_at(Path(place), isolation=isolation, timeout_s=200).run(task(), (), seat))
