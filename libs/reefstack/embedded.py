"""The embedded stack as an async context manager, for `reef serve` and for tests."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path

from reefcommon.config import ServeConfig
from reefstack import logs, object_store, plan, ports, s3, seaweedfs, state, tansu, valkey
from reefstack.disk import check_disk
from reefstack.errors import CannotStart, PortTaken
from reefstack.housekeeping import keep_log
from reefstack.launch import Launch, Options, Stack
from reefstack.merger.rounds import Merger
from reefstack.process import sweep
from reefstack.restart_policy import StackEvent
from reefstack.spec import Site
from reefstack.supervisor import Supervisor, cancel

__all__ = ["CannotStart", "Options", "Stack", "embedded_stack"]


@contextlib.asynccontextmanager
async def embedded_stack(
    config: ServeConfig,
    state_dir: Path,
    options: Options | None = None,
    *,
    listener: Callable[[StackEvent], None] = lambda _event: None,
) -> AsyncIterator[Stack]:
    """Start the programs of `config`, keep them running, and end them on leaving.

    Raises:
        CannotStart: the directory or a port is in use, or a program is missing or never ready.
        StackFailed: a program died too often during the start.
    """
    options = options or Options()
    _ask_loopback_directly()
    with state.locked(state_dir) as home:
        check_disk(home)
        last, stack_id = state.read_state(home), state.secrets_of(home).stack_id
        left_over, used = (last.processes.values(), last.ports) if last else ((), {})
        for name in await asyncio.to_thread(sweep, stack_id, left_over):
            listener(StackEvent(name, "stopped", "left over from a run that was killed"))
        site = _site(config, home, options, used)
        asked = _asked_ports(config).values()
        usual = options.default_ports and not asked and not ports.only_free_ones()
        if usual and (note := ports.moved(site.ports)):
            listener(StackEvent("gateway", "note", note))
        if site.store == seaweedfs.NAME != options.store:
            listener(StackEvent(seaweedfs.NAME, "note", object_store.KEEPS_SEAWEEDFS))
        launch = Launch(config, site, options, listener)
        try:
            async with contextlib.AsyncExitStack() as background:
                _begin(background, _rotate_logs(home / "logs"))
                for starts_left in (2, 1, 0):
                    try:
                        stack = await launch.run()
                        break
                    except PortTaken as error:
                        if error.port in asked or not starts_left:
                            raise
                        text = f"port {error.port} was taken meanwhile: starting on other ports"
                        listener(StackEvent("stack", "note", text))
                    await launch.supervisor.stop()
                    site = _site(config, home, options, used)
                    launch = Launch(config, site, options, listener)
                if stack.log is not None and options.housekeeping_every_s:
                    merger = Merger(s3.bucket(stack.log, timeout_s=30), options.merge_limits)
                    every_s = options.housekeeping_every_s
                    _begin(background, keep_log(merger.round, every_s, listener))
                yield stack
        finally:
            await _stop(launch.supervisor)
            with contextlib.suppress(OSError):
                launch.note("ended")


def _ask_loopback_directly() -> None:
    # The user's proxy is not meant for loopback, neither for this process nor for the programs.
    given = (os.environ.get(name, "") for name in ("NO_PROXY", "no_proxy"))
    hosts = dict.fromkeys([*",".join(given).split(","), "127.0.0.1", "localhost"])
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(filter(None, hosts))


def _site(config: ServeConfig, home: Path, options: Options, last: Mapping[str, int]) -> Site:
    # before anything is started, so that a mistake costs no time
    wanted = plan.roles(config, options.only)
    store = None if options.memory_broker else object_store.kind_of(home, options.store)
    binaries = {}
    if "kafka" in wanted:
        binaries[tansu.NAME] = tansu.binary()
        if store == seaweedfs.NAME:
            binaries[seaweedfs.NAME] = seaweedfs.binary()
    if "redis" in wanted:
        binaries[valkey.NAME] = valkey.binary()
    free = ports.only_free_ones()
    chosen = ports.choose(
        plan.listeners(wanted, store),
        asked=_asked_ports(config),
        last={} if free else last,
        prefer_defaults=options.default_ports and not free,
    )
    return Site(home, chosen, binaries, state.secrets_of(home), options.config_path, None, store)


def _asked_ports(config: ServeConfig) -> dict[str, int]:
    # `gateway.port`, of the file or the command line
    return {"gateway": config.gateway.port} if "port" in config.gateway.model_fields_set else {}


async def _rotate_logs(directory: Path) -> None:
    while True:
        await asyncio.sleep(10)
        # without room for the older part the next round tries again
        with contextlib.suppress(OSError):
            await asyncio.to_thread(logs.rotate, directory)


def _begin(stack: contextlib.AsyncExitStack, work: Coroutine[object, object, None]) -> None:
    stack.push_async_callback(cancel, [asyncio.ensure_future(work)])


async def _stop(supervisor: Supervisor) -> None:
    try:
        await supervisor.stop()
    except asyncio.CancelledError:  # a second Ctrl-C
        await supervisor.kill()
        raise
