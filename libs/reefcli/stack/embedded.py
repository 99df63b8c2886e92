"""The embedded stack as one async context manager: `reef serve` enters it with everything, tests with a broker alone."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reefcli.errors import CannotStart, StackFailed
from reefcli.stack import logs, plan, ports, seaweedfs, services, state, tansu, valkey
from reefcli.stack.supervisor import RestartPolicy, StackEvent, Step, Supervisor
from reefcli.stack.sweep import sweep
from reefcommon.bus import ensure_topics
from reefcommon.config import ServeConfig

MIN_FREE_BYTES = 1024**3
PrepareModel = Callable[[str, Path, Callable[[float, str], None]], Path]


@dataclass(frozen=True, slots=True)
class Options:
    """How to start. `only`: roles (`kafka`, `redis`, `engine`, service names), None for all that the config wants."""

    only: frozenset[str] | None = None
    memory_broker: bool = False
    config_path: Path | None = None
    asked_ports: Mapping[str, int] = field(default_factory=dict)
    default_ports: bool = True
    create_topics: bool = True
    policy: RestartPolicy | None = None
    env: Mapping[str, str] | None = None


@dataclass(slots=True)
class Stack:
    """A running stack: where its parts are, and how to wait for its failure."""

    state_dir: Path
    kafka_bootstrap: str
    redis_url: str
    urls: dict[str, str]
    supervisor: Supervisor

    async def failed(self) -> StackFailed:
        """Waits until a program has died for good."""
        return await self.supervisor.failed()


@contextlib.asynccontextmanager
async def embedded_stack(
    config: ServeConfig,
    state_dir: Path,
    options: Options | None = None,
    *,
    listener: Callable[[StackEvent], None] = lambda _event: None,
    prepare_model: PrepareModel | None = None,
) -> AsyncIterator[Stack]:
    """Start what `config` wants on this machine, keep it running, and end it on leaving.

    Raises:
        CannotStart: the directory is in use or nearly full, a port that was asked for is taken, a program is missing or never ready.
        StackFailed: a program died too often while the stack was starting.
    """
    options = options or Options()
    state_dir = state_dir.resolve()
    with state.locked(state_dir):
        check_disk(state_dir)
        secrets = state.secrets_of(state_dir)
        last = state.read_state(state_dir)
        (state_dir / "stack.json").unlink(missing_ok=True)
        for name in await asyncio.to_thread(sweep, secrets.stack_id):
            listener(StackEvent(name, "stopped", "left over from a run that was killed"))
        site, wanted = _site(config, state_dir, options, secrets, last)
        supervisor = Supervisor(secrets.stack_id, listener=listener, policy=options.policy, base_env=options.env)
        launch = _Launch(config, site, wanted, options, supervisor, listener, prepare_model)
        try:
            async with contextlib.AsyncExitStack() as background:
                background.push_async_callback(_end, asyncio.ensure_future(_rotate_logs(state_dir / "logs")))
                yield await launch.run()
                launch.note(ready=False)
        finally:
            await _stop(supervisor)
            (state_dir / "stack.json").unlink(missing_ok=True)


def _site(
    config: ServeConfig, state_dir: Path, options: Options, secrets: state.Secrets, last: state.StackState | None
) -> tuple[plan.Site, tuple[str, ...]]:
    """Find the programs and the ports; nothing has been started yet, so that a mistake costs nothing."""
    wanted = plan.roles(config, options.only)
    binaries = {}
    if "kafka" in wanted:
        binaries[tansu.NAME] = tansu.binary()
        if not options.memory_broker:
            binaries[seaweedfs.NAME] = seaweedfs.binary()
    if "redis" in wanted:
        binaries[valkey.NAME] = valkey.binary()
    chosen = ports.choose(
        plan.listeners(wanted, memory_broker=options.memory_broker),
        asked=asked_ports(config, options.asked_ports),
        last=last.ports if last else {},
        prefer_defaults=options.default_ports,
    )
    site = plan.Site(state_dir, chosen, binaries, secrets, options.config_path, None, options.memory_broker)
    return site, wanted


def asked_ports(config: ServeConfig, asked: Mapping[str, int]) -> dict[str, int]:
    """Ports that a person has asked for: on the command line, or by writing `gateway.port` into the file."""
    written = {"gateway": config.gateway.port} if "port" in config.gateway.model_fields_set else {}
    return {**written, **asked}


@dataclass(slots=True)
class _Launch:
    config: ServeConfig
    site: plan.Site
    wanted: tuple[str, ...]
    options: Options
    supervisor: Supervisor
    listener: Callable[[StackEvent], None]
    prepare_model: PrepareModel | None
    record: state.StackState | None = None

    async def run(self) -> Stack:
        """Broker and stores while the model is prepared, then the topics, then the serving node and the services."""
        urls = {name: f"http://127.0.0.1:{port}" for name, port in self.site.ports.items() if name in services.SERVICES}
        urls["kafka"] = plan.kafka_bootstrap(self.config, self.site.ports)
        urls["redis"] = plan.redis_url(self.config, self.site.ports)
        urls[services.ENGINE] = plan.environment(self.config, self.site).get("REEF_ENGINE_URLS", "")
        config_path = str(self.options.config_path or "")
        self.record = state.new_state(config_path, dict(self.site.ports), {k: v for k, v in urls.items() if v})
        self.note(ready=False)
        steps: dict[str, tuple[str, Step]] = {}
        if urls["kafka"] and self.options.create_topics:
            steps[services.TOPICS] = (tansu.NAME, self._create_topics)
        if self._needs_model:
            steps["model"] = ("", self._prepare)
        await self.supervisor.start(plan.infrastructure(self.wanted, self.site), steps)
        self.note(ready=False)
        await self.supervisor.start(plan.applications(self.wanted, self.config, self.site))
        self.note(ready=True)
        return Stack(self.site.state_dir, urls["kafka"], urls["redis"], self.record.urls, self.supervisor)

    def note(self, *, ready: bool) -> None:
        """Keep the run in stack.json as it is now."""
        assert self.record is not None
        processes = {name: child.record for name, child in self.supervisor.children.items()}
        self.record = self.record.model_copy(update={"ready": ready, "processes": processes})
        state.write_state(self.site.state_dir, self.record)

    @property
    def _needs_model(self) -> bool:
        return bool({services.ENGINE, "trainer"} & set(self.wanted))

    async def _create_topics(self) -> None:
        await ensure_topics(plan.kafka_bootstrap(self.config, self.site.ports))

    async def _prepare(self) -> None:
        prepare = self.prepare_model
        if prepare is None:
            from reefcli.models import prepare
        loop = asyncio.get_running_loop()

        def progress(fraction: float, text: str) -> None:
            loop.call_soon_threadsafe(self.listener, StackEvent("model", "progress", text, fraction))

        path = await asyncio.to_thread(prepare, self.config.model.name, cache_dir(), progress)
        self.site = plan.Site(
            self.site.state_dir,
            self.site.ports,
            self.site.binaries,
            self.site.secrets,
            self.site.config_path,
            path,
            self.site.memory_broker,
        )


def cache_dir() -> Path:
    """Where prepared models are kept for all stacks of this user."""
    return Path(os.environ.get("REEF_CACHE_DIR") or Path.home() / ".cache" / "reef") / "models"


def check_disk(state_dir: Path, *, free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free) -> None:
    """A broker on a full disk cannot keep its promises: refuse before anything starts.

    Raises:
        CannotStart: less than 1 GB is free.
    """
    left = free(state_dir)
    if left < MIN_FREE_BYTES:
        raise CannotStart(
            f"only {left / 1024**2:.0f} MB are free where {state_dir} lies, 1 GB is needed. Free some space, or choose another --state-dir."
        )


async def _rotate_logs(directory: Path) -> None:
    while True:
        await asyncio.sleep(10)
        await asyncio.to_thread(logs.rotate, directory)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _stop(supervisor: Supervisor) -> None:
    """Stop in order; cancelled meanwhile (a second Ctrl-C), kill what is left."""
    try:
        await supervisor.stop()
    except asyncio.CancelledError:
        await supervisor.kill()
        raise
