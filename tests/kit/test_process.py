"""What a service's process sets up before it serves."""

import subprocess
import sys

PROGRAM = """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
from reefkit.ops import set_up_process
set_up_process()
print(resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard))
"""


def test_a_service_may_have_as_many_connections_as_the_system_allows() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr
