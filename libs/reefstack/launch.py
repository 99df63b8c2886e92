"""A start of the stack: its options, the order of its parts, and the running stack."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from reefcommon import topics
from reefcommon.config import ServeConfig
from reefcommon.errors import ReefError
from reefkit.kafka_topics import ensure_topics
from reefstack import plan, services, state, tansu
from reefstack.disk import why_no_room
from reefstack.effective_config import override, to_yaml
from reefstack.errors import CannotStart
from reefstack.merger.objects import Limits
from reefstack.models import UnknownModelError, prepare
from reefstack.restart_policy import RestartPolicy, StackEvent
from reefstack.spec import S3Writable, Site, StoreKind
from reefstack.supervisor import Step, Supervisor


@dataclass(frozen=True, slots=True)
class Options:
    """How to start. `only`: roles, as in `plan.ROLES`; None for all."""

    only: frozenset[str] | None = None
    memory_broker: bool = False
    store: StoreKind | None = None  # that of the directory, else the default
    config_path: Path | None = None
    default_ports: bool = True
    create_topics: bool = True
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    housekeeping_every_s: float = 60.0  # 0: never
    merge_limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] | None = None  # beside the environment of this process


@dataclass(slots=True)
class Stack:
    """A running stack. `log` is None if the broker keeps no log on disk."""

    state_dir: Path
    kafka_bootstrap: str
    redis_url: str
    urls: dict[str, str]
    supervisor: Supervisor
    log: S3Writable | None = None

    async def failed(self) -> ReefError:
        """Wait until a program has died for good."""
        return await self.supervisor.failed()


@dataclass(slots=True)
class Launch:
    """Starts the programs of a plan, and keeps `stack.json` as the run is."""

    config: ServeConfig
    site: Site
    options: Options
    listener: Callable[[StackEvent], None]
    wanted: tuple[str, ...] = field(init=False)
    supervisor: Supervisor = field(init=False)
    record: state.StackState | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        home, self.wanted = self.site.state_dir, plan.roles(self.config, self.options.only)
        self.supervisor = Supervisor(
            self.site.secrets.stack_id,
            listener=self._hear,
            policy=self.options.policy,
            more_env=self.options.env,
            holds=home / "hold",
            room=lambda: why_no_room(home),
        )

    async def run(self) -> Stack:
        """Start broker and stores while the model is prepared, then topics, engine and services."""
        urls, config = self._urls(), str(self.options.config_path or "")
        known = {name: url for name, url in urls.items() if url}
        planned = plan.programs(self.wanted, self.site.store)
        run = {"config": config, "ports": self.site.ports, "urls": known, "planned": planned}
        self.record = state.new_state(**run)
        self.note("starting")
        for name in planned:
            self.listener(StackEvent(name, "planned"))
        self._write_config()
        steps: dict[str, tuple[str, Step]] = {}
        if urls["kafka"] and self.options.create_topics:
            wanted = tansu.TOPICS if "kafka" in self.site.ports else topics.ALL
            steps[services.TOPICS] = (tansu.NAME, partial(ensure_topics, urls["kafka"], wanted))
        if {services.ENGINE, "trainer"} & set(self.wanted):
            steps["model"] = ("", self._prepare)
        infrastructure = plan.infrastructure(self.wanted, self.site)
        await self.supervisor.start(infrastructure, steps)
        self.note("starting")
        await self.supervisor.start(plan.applications(self.wanted, self.config, self.site))
        self.note("ready")
        probes = (spec.probe for spec in infrastructure)
        log = next((probe for probe in probes if isinstance(probe, S3Writable)), None)
        return Stack(self.site.state_dir, urls["kafka"], urls["redis"], known, self.supervisor, log)

    def note(self, phase: Literal["starting", "ready", "ended"] | None = None) -> None:
        """Write the run into stack.json. Raises OSError."""
        if self.record is None:
            return
        phase = phase or self.record.phase
        processes = {name: child.record for name, child in self.supervisor.children.items()}
        now = {"phase": phase, "processes": processes, "ready": self.supervisor.ready}
        self.record = self.record.model_copy(update=now)
        state.write_state(self.site.state_dir, self.record)

    def _hear(self, event: StackEvent) -> None:
        # on a full disk the programs go on, and the next event writes the state of then
        with contextlib.suppress(OSError):
            if event.kind == "ready":
                self.note()  # a restarted program has a new pid
        # rich ends the program if the reader of its output is gone
        with contextlib.suppress(OSError, SystemExit):
            self.listener(event)

    def _urls(self) -> dict[str, str]:
        env = plan.environment(self.config, self.site)
        return {
            **{name: self.site.url(name) for name in services.SERVICES},
            "kafka": env.get("REEF_KAFKA_BOOTSTRAP", ""),
            "redis": env.get("REEF_REDIS_URL", ""),
            services.ENGINE: env.get("REEF_ENGINE_URLS", ""),
        }

    def _write_config(self) -> None:
        # the services read the configuration in force, with the gateway's port as it was found
        path = self.site.state_dir / "serve.yaml"
        port = {"port": self.site.ports.get("gateway")}
        state.write_private(path, to_yaml(override(self.config, {"gateway": port})).encode())
        self.site = replace(self.site, config_path=path)

    async def _prepare(self) -> None:
        loop = asyncio.get_running_loop()

        def progress(text: str, share: float) -> None:
            loop.call_soon_threadsafe(self.listener, StackEvent("model", "progress", text, share))

        try:
            path = await asyncio.to_thread(prepare, self.config.model.name, None, progress)
        except (UnknownModelError, FileNotFoundError) as error:
            raise CannotStart(f"model.name: {error}") from None
        self.site = replace(self.site, model_path=path)
