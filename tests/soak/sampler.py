"""One look at everything: processes, disks, Redis, ledgers, and what the services say of
themselves.
"""

import asyncio
import os
import re
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import redis.asyncio

from reefstack.state import StackState

GAUGES = {
    "reef_sessions_open", "reef_reports_parked", "reef_gateway_spool_records", "reef_gateway_spool_bytes", "reef_gateway_in_flight",
    "reef_job_samples_waiting", "vllm:num_loras_loaded", "vllm:num_requests_running", "vllm:num_requests_waiting",
    "reef_consumer_lag_events",
}  # fmt: skip
TABLES = dict.fromkeys(("trainer", "harness"), ("samples", "records", "jobs", "outbox"))
FOLDERS = (
    "staging",
    "trainer/states",
    "trainer/trees",
    "harness/trees",
    "evaluator",
    "bodies",
    "gateway/spool",
)
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{[^}]*\})? ([-+.\deE]+|NaN)$")
MB = 1024 * 1024


@dataclass(slots=True)
class Sampler:
    """Looks at the stack on `state_dir`."""

    state_dir: Path
    state: StackState

    async def sample(self, http: aiohttp.ClientSession) -> dict[str, float]:
        """Series name -> value."""
        figures = await asyncio.to_thread(self._local)
        for found in await asyncio.gather(
            self._redis(), *(self._metrics(http, name, url) for name, url in self._urls().items())
        ):
            for name, value in found.items():
                figures[name] = figures.get(name, 0.0) + value
        return figures

    def _urls(self) -> dict[str, str]:
        return {name: url for name, url in self.state.urls.items() if url.startswith("http")}

    def _local(self) -> dict[str, float]:
        return {**self._processes(), **self._disks(), **self._folders(), **self._ledgers()}

    def _processes(self) -> dict[str, float]:
        figures: dict[str, float] = {}
        running = {
            "supervisor": self.state.pid,
            **{name: record.pid for name, record in self.state.processes.items()},
        }
        for name, pid in running.items():
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                figures |= _process(name, process)
                for child in process.children(recursive=True) if name != "supervisor" else ():
                    with suppress(psutil.Error):
                        figures |= _process(f"{name}/step", child)
        return figures

    def _disks(self) -> dict[str, float]:
        return {
            f"disk_mb:{entry.name}": disk_bytes(entry) / MB
            for entry in self.state_dir.iterdir()
            if entry.is_dir()
        }

    def _folders(self) -> dict[str, float]:
        return {
            f"files:{name}": float(_entries(self.state_dir / name))
            for name in FOLDERS
            if (self.state_dir / name).is_dir()
        }

    def _ledgers(self) -> dict[str, float]:
        figures = {}
        for name, tables in TABLES.items():
            path = self.state_dir / name / "ledger.sqlite"
            if path.is_file():
                with (
                    suppress(sqlite3.Error),
                    closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=2)) as db,
                ):
                    for table in tables:
                        figures[f"rows:{name}.{table}"] = float(
                            db.execute(f"select count(*) from {table}").fetchone()[0]
                        )
        return figures

    async def _redis(self) -> dict[str, float]:
        async with redis.asyncio.Redis.from_url(
            self.state.urls["redis"], decode_responses=True
        ) as client:
            memory: dict[str, Any] = await client.info("memory")
            return {
                "redis_keys:all": float(await client.dbsize()),
                "redis_mb:used": memory["used_memory"] / MB,
                "count:releases": float(
                    await client.llen("reef:{default}:chain")
                    + await client.llen("reef:{rules}:chain")
                ),
            }

    async def _metrics(
        self, http: aiohttp.ClientSession, service: str, url: str
    ) -> dict[str, float]:
        try:
            async with http.get(
                f"{url}/metrics", timeout=aiohttp.ClientTimeout(total=10)
            ) as response:
                lines = (await response.text()).splitlines()
        except (aiohttp.ClientError, TimeoutError):
            return {}
        found = [match for line in lines if (match := _LINE.match(line))]
        figures = {f"series:{service}": float(len(found))}
        for match in found:
            if match[1] in GAUGES and match[2] != "NaN":
                name = f"gauge:{match[1]}"
                figures[name] = figures.get(name, 0.0) + float(match[2])
        return figures


def _process(name: str, process: psutil.Process) -> dict[str, float]:
    with process.oneshot():
        times = process.cpu_times()
        return {
            f"rss_mb:{name}": process.memory_info().rss / MB,
            f"fds:{name}": float(process.num_fds()),
            f"threads:{name}": float(process.num_threads()),
            f"cpu_s:{name}": times.user + times.system,
        }


def disk_bytes(root: Path) -> int:
    """What a directory really takes: files with holes count by their blocks."""
    total = 0
    for folder, _, files in os.walk(root):
        for file in files:
            with suppress(OSError):
                total += Path(folder, file).lstat().st_blocks * 512
    return total


def _entries(root: Path) -> int:
    return (
        sum(len(files) for _, _, files in os.walk(root))
        if root.name in {"bodies", "spool"}
        else len(list(root.glob("*")))
    )


def ready(state_dir: Path, since: float) -> StackState | None:
    """The state of a stack that started after `since` and is up."""
    with suppress(OSError, ValueError):
        state = StackState.model_validate_json((state_dir / "stack.json").read_bytes())
        if state.started_at >= since and state.phase == "ready" and state.alive:
            return state
    return None


def wait_ready(state_dir: Path, since: float, within_s: float, alive: Any) -> StackState:
    """Wait until a stack that was started after `since` is up. Raises TimeoutError, or
    RuntimeError where it has ended.
    """
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if (state := ready(state_dir, since)) is not None:
            return state
        if not alive():
            raise RuntimeError("reef serve ended before it was ready")
        time.sleep(0.2)
    raise TimeoutError(f"reef serve was not ready within {within_s:.0f} s")
