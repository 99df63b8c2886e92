"""The embedded stack as one async context manager: `reef serve` enters it with everything, tests with a broker alone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from reefcommon.config import ServeConfig
from reefcommon.errors import ReefError
from reefkit.bus import ensure_topics
from reefstack import logs, object_store, plan, ports, s3, seaweedfs, services, state, tansu, valkey
from reefstack.disk import check_disk, why_no_room
from reefstack.effective_config import override, to_yaml
from reefstack.errors import CannotStart
from reefstack.housekeeping import Job, keep_house
from reefstack.merger import filer_log
from reefstack.merger.objects import Limits
from reefstack.merger.rounds import Merger
from reefstack.models import UnknownModelError, prepare
from reefstack.restart_policy import RestartPolicy, StackEvent
from reefstack.spec import S3Writable
from reefstack.supervisor import Step, Supervisor
from reefstack.sweep import sweep


@dataclass(frozen=True, slots=True)
class Options:
    """How to start. `only`: roles (`kafka`, `redis`, `engine`, service names), None for all that the config wants."""

    only: frozenset[str] | None = None
    memory_broker: bool = False
    store: object_store.Kind | None = None
    """None: the one that the state directory has already, else the default."""
    config_path: Path | None = None
    asked_ports: Mapping[str, int] = field(default_factory=dict)
    default_ports: bool = True
    create_topics: bool = True
    policy: RestartPolicy | None = None
    housekeeping_every_s: float = 600.0
    """0: never."""
    merge_limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class LogStore:
    """The bucket of the embedded broker's log, and the filer below it if there is such."""

    bucket: S3Writable
    filer_url: str = ""


@dataclass(slots=True)
class Stack:
    """A running stack: where its parts are, and how to wait for its failure."""

    state_dir: Path
    kafka_bootstrap: str
    redis_url: str
    urls: dict[str, str]
    supervisor: Supervisor
    log: LogStore | None = None
    """Where the embedded broker keeps its log; None where it keeps none."""

    async def failed(self) -> ReefError:
        """Waits until a program has died for good."""
        return await self.supervisor.failed()


@contextlib.asynccontextmanager
async def embedded_stack(
    config: ServeConfig,
    state_dir: Path,
    options: Options | None = None,
    *,
    listener: Callable[[StackEvent], None] = lambda _event: None,
) -> AsyncIterator[Stack]:
    """Start what `config` wants on this machine, keep it running, and end it on leaving.

    Raises:
        CannotStart: the directory is in use or nearly full, a port that was asked for is taken, a program is missing or never ready.
        StackFailed: a program died too often while the stack was starting.
    """
    options = options or Options()
    with state.locked(state_dir) as home:
        check_disk(home)
        secrets = state.secrets_of(home)
        last = state.read_state(home)
        for name in await asyncio.to_thread(
            sweep, secrets.stack_id, tuple(last.processes.values()) if last else ()
        ):
            listener(StackEvent(name, "stopped", "left over from a run that was killed"))
        site, wanted = _site(config, home, options, secrets, last)
        if (note := _moved(config, options, site)) != "":
            listener(StackEvent("gateway", "note", note))
        if site.store == seaweedfs.NAME != options.store:
            listener(StackEvent(seaweedfs.NAME, "note", object_store.KEEPS_SEAWEEDFS))

        def hear(event: StackEvent) -> None:
            with contextlib.suppress(
                OSError
            ):  # on a full disk the programs go on, and the next event writes what is so then
                if event.kind == "ready":
                    launch.note()  # a restarted program has a new pid
            with contextlib.suppress(
                OSError, SystemExit
            ):  # rich ends the program whose output nobody reads any more
                listener(event)

        supervisor = Supervisor(
            secrets.stack_id,
            listener=hear,
            policy=options.policy,
            base_env=options.env,
            holds=home / "hold",
            room=lambda: why_no_room(home),
        )
        launch = _Launch(config, site, wanted, options, supervisor, listener)
        try:
            async with contextlib.AsyncExitStack() as background:
                background.push_async_callback(
                    _end, asyncio.ensure_future(_rotate_logs(home / "logs"))
                )
                stack = await launch.run()
                if stack.log is not None and options.housekeeping_every_s:
                    background.push_async_callback(
                        _end, asyncio.ensure_future(_keep_log(stack.log, options, listener))
                    )
                yield stack
        finally:
            await _stop(supervisor)
            with contextlib.suppress(OSError):
                launch.note("ended")


def _site(
    config: ServeConfig,
    state_dir: Path,
    options: Options,
    secrets: state.Secrets,
    last: state.StackState | None,
) -> tuple[plan.Site, tuple[str, ...]]:
    """Find the programs and the ports; nothing has been started yet, so that a mistake costs nothing."""
    wanted = plan.roles(config, options.only)
    store = None if options.memory_broker else object_store.kind_of(state_dir, options.store)
    binaries = {}
    if "kafka" in wanted:
        binaries[tansu.NAME] = tansu.binary()
        if store == seaweedfs.NAME:
            binaries[seaweedfs.NAME] = seaweedfs.binary()
    if "redis" in wanted:
        binaries[valkey.NAME] = valkey.binary()
    chosen = ports.choose(
        plan.listeners(wanted, store),
        asked=asked_ports(config, options.asked_ports),
        last=last.ports if last and not ports.only_free_ones() else {},
        prefer_defaults=options.default_ports and not ports.only_free_ones(),
    )
    site = plan.Site(state_dir, chosen, binaries, secrets, options.config_path, None, store)
    return site, wanted


def _moved(config: ServeConfig, options: Options, site: plan.Site) -> str:
    """Why the gateway is on another port than the usual one, where nobody asked for that."""
    asked = (
        "gateway" in asked_ports(config, options.asked_ports)
        or not options.default_ports
        or ports.only_free_ones()
    )
    return "" if asked else ports.moved(site.ports)


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
    record: state.StackState | None = None

    async def run(self) -> Stack:
        """Broker and stores while the model is prepared, then the topics, then the serving node and the services."""
        urls = {
            name: f"http://127.0.0.1:{port}"
            for name, port in self.site.ports.items()
            if name in services.SERVICES
        }
        urls["kafka"] = plan.kafka_bootstrap(self.config, self.site.ports)
        urls["redis"] = plan.redis_url(self.config, self.site.ports)
        urls[services.ENGINE] = plan.environment(self.config, self.site).get("REEF_ENGINE_URLS", "")
        config_path = str(self.options.config_path or "")
        planned = plan.programs(self.wanted, self.site.store)
        self.record = state.new_state(
            config_path, dict(self.site.ports), {k: v for k, v in urls.items() if v}, planned
        )
        self.note("starting")
        self._write_config()
        steps: dict[str, tuple[str, Step]] = {}
        if urls["kafka"] and self.options.create_topics:
            steps[services.TOPICS] = (tansu.NAME, self._create_topics)
        if self._needs_model:
            steps["model"] = ("", self._prepare)
        infrastructure = plan.infrastructure(self.wanted, self.site)
        await self.supervisor.start(infrastructure, steps)
        self.note("starting")
        await self.supervisor.start(plan.applications(self.wanted, self.config, self.site))
        self.note("ready")
        filer = self.site.ports.get("s3_filer")
        filer_url = f"http://127.0.0.1:{filer}" if filer else ""
        buckets = [spec.probe for spec in infrastructure if isinstance(spec.probe, S3Writable)]
        log = LogStore(buckets[0], filer_url) if buckets else None
        return Stack(
            self.site.state_dir,
            urls["kafka"],
            urls["redis"],
            self.record.urls,
            self.supervisor,
            log,
        )

    def note(self, phase: Literal["starting", "ready", "ended"] | None = None) -> None:
        """Keep the run in stack.json as it is now."""
        if self.record is None:
            return
        phase = phase or self.record.phase
        processes = {name: child.record for name, child in self.supervisor.children.items()}
        self.record = self.record.model_copy(
            update={"phase": phase, "processes": processes, "ready": self.supervisor.ready}
        )
        state.write_state(self.site.state_dir, self.record)

    def _write_config(self) -> None:
        """The services read the configuration in force, with the gateway's port as found, whatever file it came from."""
        path = self.site.state_dir / "serve.yaml"
        port = {"port": self.site.ports.get("gateway")}
        state.write_private(path, to_yaml(override(self.config, {"gateway": port})).encode())
        self.site = replace(self.site, config_path=path)

    @property
    def _needs_model(self) -> bool:
        return bool({services.ENGINE, "trainer"} & set(self.wanted))

    async def _create_topics(self) -> None:
        await ensure_topics(plan.kafka_bootstrap(self.config, self.site.ports))

    async def _prepare(self) -> None:
        loop = asyncio.get_running_loop()

        def progress(what: str, share: float) -> None:
            loop.call_soon_threadsafe(self.listener, StackEvent("model", "progress", what, share))

        try:
            path = await asyncio.to_thread(prepare, self.config.model.name, None, progress)
        except (UnknownModelError, FileNotFoundError) as error:
            raise CannotStart(f"model.name: {error}") from None
        self.site = replace(self.site, model_path=path)


async def _rotate_logs(directory: Path) -> None:
    while True:
        await asyncio.sleep(10)
        with contextlib.suppress(OSError):  # no room for the older part: the next round tries again
            await asyncio.to_thread(logs.rotate, directory)


async def _keep_log(
    log: LogStore, options: Options, listener: Callable[[StackEvent], None]
) -> None:
    merger = Merger(s3.bucket(log.bucket, timeout_s=30), options.merge_limits)
    jobs: dict[str, Job] = {"merging small objects of the log": merger.round}
    if log.filer_url:
        jobs["removing the filer's change log"] = lambda: filer_log.purge(
            log.filer_url, before=datetime.now(UTC) - filer_log.KEPT
        )
    await keep_house(
        jobs,
        options.housekeeping_every_s,
        lambda why: listener(StackEvent(tansu.NAME, "note", why)),
    )


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
