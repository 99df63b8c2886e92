"""`reef serve` as a child process, and what can be done to its programs: killed, stopped, kept
down. By pid, never by name.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from reefstack.process import STACK_VARIABLE
from reefstack.state import StackState, read_state

ROOT = Path(__file__).parents[2]
START_WITHIN_S = 240.0
SPOOL_DISK_BYTES = 24 * 1024 * 1024


class StackDied(Exception):
    """`reef serve` ended by itself."""


class ReefStack:
    """One state directory and the `reef serve` on it."""

    def __init__(self, home: Path, *, config: str, environment: dict[str, str]) -> None:
        self.home = home
        self.state_dir = home / "state"
        self._config = home / "serve.yaml"
        self._log = home / "serve.log"
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True, exist_ok=True)
        self._config.write_text(config)

    def start(self) -> None:
        """Returns once everything is ready. Raises StackDied."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "reefcli", "serve", "-c", str(self._config), "--state-dir", str(self.state_dir)],
                cwd=ROOT, stdout=output, stderr=output, start_new_session=True,
                env={**os.environ, "REEF_FREE_PORTS": "1", "OMP_NUM_THREADS": "1", **self._environment},
            )  # fmt: skip
        deadline = time.monotonic() + START_WITHIN_S
        while time.monotonic() < deadline:
            self.look()
            state = read_state(self.state_dir)
            if state is not None and state.pid == self._process.pid and state.phase == "ready":
                return
            time.sleep(0.1)
        raise StackDied(f"not ready within {START_WITHIN_S:.0f} s; see {self._log}")

    def look(self) -> None:
        """Raises StackDied where it has ended."""
        if self._process is None or self._process.poll() is not None:
            raise StackDied(f"`reef serve` has ended:\n{self._log.read_text()[-3000:]}")

    def stop(self, *, within_s: float = 90.0) -> int:
        """A clean stop, or, after `within_s`, one without grace. Returns the exit status."""
        if self._process is None:
            return 0
        for patience_s in (within_s, 5.0):  # the second signal kills every program
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(patience_s)
        self._process.kill()
        return self._process.wait(10)

    @property
    def state(self) -> StackState:
        """What the supervisor says of itself."""
        state = read_state(self.state_dir)
        assert state is not None
        return state

    def url(self, name: str) -> str:
        """Where a program listens, whatever stands before it."""
        return f"http://127.0.0.1:{self.state.ports[name]}"

    def kill(self) -> None:
        """SIGKILL to the supervisor alone: what it has started is told by the kernel, and ends
        in its own time.
        """
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)

    def find(self, part: str) -> psutil.Process | None:
        """The process that runs a part now: a child of the supervisor, known by the mark in its
        environment, or of the trainer.
        """
        assert self._process is not None
        if part == "step":
            return self._step_process()
        with contextlib.suppress(psutil.Error):
            if part == "serve":
                return psutil.Process(self._process.pid)
            for child in psutil.Process(self._process.pid).children():
                with contextlib.suppress(psutil.Error, OSError):
                    mark = child.environ().get(STACK_VARIABLE, "")
                    if mark.partition(":")[2] == part and child.status() != psutil.STATUS_ZOMBIE:
                        return child
        return None

    def _step_process(self) -> psutil.Process | None:
        trainer = self.find("trainer")
        with contextlib.suppress(psutil.Error):
            for child in trainer.children() if trainer is not None else ():
                if "services.trainer.worker" in child.cmdline():
                    return child
        return None

    def signal(self, part: str, number: int) -> bool:
        """Send a signal to the process that runs a part. False where there is none at the
        moment.
        """
        process = self.find(part)
        if process is None:
            return False
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
            return True
        return False

    def hold(self, part: str) -> None:
        """Keep a part from starting again, and kill it."""
        (self.state_dir / "hold").mkdir(exist_ok=True)
        (self.state_dir / "hold" / part).touch()
        self.signal(part, signal.SIGKILL)

    def let_go(self, part: str) -> None:
        """It may start again."""
        (self.state_dir / "hold" / part).unlink(missing_ok=True)


class SpoolDisk:
    """The gateway's spool on a small disk of its own, where one can be mounted; else on a small
    budget.
    """

    def __init__(self, state_dir: Path, size: int = SPOOL_DISK_BYTES) -> None:
        self._size = size
        self.path = state_dir / "gateway" / "spool"
        self.path.mkdir(parents=True, exist_ok=True)
        command = [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            f"size={size}",
            "tmpfs",
            str(self.path),
        ]
        self.mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
        self._ballast = self.path / "ballast"

    @property
    def environment(self) -> dict[str, str]:
        """For the gateway."""
        return {
            "REEF_GATEWAY_SPOOL_BUDGET_BYTES": str(self._size // 3 if self.mounted else 256 * 1024)
        }

    def fill(self) -> None:
        """Until nothing more fits."""
        if self.mounted:
            with contextlib.suppress(OSError), self._ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(65_536))

    def clear(self) -> None:
        """Room again."""
        self._ballast.unlink(missing_ok=True)

    def unmount(self) -> None:
        """Give the disk back."""
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=False, capture_output=True)
