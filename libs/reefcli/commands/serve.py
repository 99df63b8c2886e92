"""`reef serve`: start the stack of a serve.yaml on this machine, until Ctrl-C."""

import asyncio
import os
import signal
import sys
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel

from reefcli import curl
from reefcli.checks import check_config, read_config
from reefcli.options import AsJson, StateDirOfFile, program, state_dir_words
from reefcli.output import console
from reefcommon.config import ServeConfig
from reefcommon.errors import ReefError
from reefcommon.events import utc_now
from reefstack.effective_config import override

if TYPE_CHECKING:
    from reefstack.embedded import Stack
    from reefstack.view import PlainView

_External = partial(typer.Option, rich_help_panel="External systems")
_CLICKHOUSE = "http://user:password@host:8123/database"


_Config = Annotated[
    Path, typer.Option("--config", "-c", help="The model, and the recipes that learn from it.")
]
_PORT = "Port of the gateway. Default: 8900, or a free one if that is taken."
_Port = Annotated[int | None, typer.Option(help=_PORT)]
_Model = Annotated[str | None, typer.Option(help="smollm2, tiny, or a Hugging Face directory.")]


def serve(
    config: _Config,
    state_dir: StateDirOfFile = None,
    port: _Port = None,
    model: _Model = None,
    engine: Annotated[
        list[str] | None, _External(help="URL of a running engine; may be repeated.")
    ] = None,
    external_kafka: Annotated[str | None, _External(help="host:port of an Apache Kafka.")] = None,
    external_redis: Annotated[str | None, _External(help="redis://host:port/0")] = None,
    external_clickhouse: Annotated[str | None, _External(help=_CLICKHOUSE)] = None,
    external_artifacts: Annotated[
        str | None, _External(help="lakefs://key:secret@host:port/repository")
    ] = None,
    external_otlp: Annotated[str | None, _External(help="http://collector:4318")] = None,
    as_json: AsJson = False,
) -> None:
    """Start the stack of a serve.yaml on this machine, without containers and without root.

    Ctrl-C stops it; the next start on the same state directory goes on from there. While it runs,
    each release, verdict, refusal and failure is one line.

    Ports: those of the last run, else 8900 to 8915, else free ones. With REEF_FREE_PORTS=1 in the
    environment all ports are free ones (but not a port that --port or the file asks for).

    Examples:

      reef serve -c recipes/sao/examples/sao/serve.yaml

      reef serve -c serve.yaml --state-dir /data/reef --port 9000

      reef serve -c serve.yaml --external-kafka broker:9092 --external-redis redis://cache:6379/0
    """
    from reefstack.view import view_for

    changes: dict[str, dict[str, Any]] = {
        "model": {"name": model},
        "gateway": {"port": port},
        "serving": {"engines": tuple(engine or ()) or None},
        "external": {
            "kafka": external_kafka,
            "redis": external_redis,
            "clickhouse": external_clickhouse,
            "artifacts": external_artifacts,
            "otlp": external_otlp,
        },
    }
    # A recipe of one's own lies in the working directory; `python -m` finds it there, too.
    sys.path.insert(0, str(Path.cwd()))
    wanted = override(read_config(config), changes)
    check_config(wanted)
    with view_for(console(), as_json=as_json) as view:
        asyncio.run(_run(wanted, config, state_dir or wanted.state_dir, view, as_json=as_json))


async def _run(
    config: ServeConfig, path: Path, state_dir: Path, view: "PlainView", *, as_json: bool
) -> None:
    from reefstack.embedded import Options, embedded_stack
    from reefstack.settings import Settings

    task, out, loop = asyncio.current_task(), console(), asyncio.get_running_loop()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # `nohup reef serve` outlives its terminal. A script's background job still hears SIGINT.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, task.cancel)  # once: stop in order; twice: kill
    # The services run as `python -m`: they find a recipe of one's own through PYTHONPATH.
    python_path = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH", ""))))
    settings = Settings.load()
    options = Options(
        config_path=path,
        policy=settings.policy,
        store=settings.object_store,
        housekeeping_every_s=settings.housekeeping_every_s,
        merge_limits=settings.limits,
        env={"PYTHONPATH": python_path},
    )
    began = utc_now()
    try:
        async with embedded_stack(config, state_dir, options, listener=view) as stack:
            # The table ends here; later events are lines below it.
            view.__exit__(None, None, None)
            if as_json:
                raise await stack.failed()
            _welcome(config, stack, state_dir, out)
            raise await _until_failed(stack, out, began)
    except asyncio.CancelledError:
        view.__exit__(None, None, None)  # what is said now belongs below the table
        if not as_json:
            words = f"Stopped. Everything is kept in {state_dir}; start again to go on."
            out.print(words, soft_wrap=True)


def _welcome(config: ServeConfig, stack: "Stack", state_dir: Path, out: Console) -> None:
    url = stack.urls.get("gateway", "")
    learns = ", ".join(f"{binding.scenario} ← {binding.recipe}" for binding in config.reef)
    text = (
        f"Serving {config.model.name} as '{config.model.served_as}' at {url}/v1\n"
        f"Learning: {learns}\nAPI docs: {url}/docs\nLogs: {state_dir / 'logs'}"
    )
    shown = Panel(text, title="Reef is up", expand=False) if out.is_terminal else text
    out.print(shown, markup=False, soft_wrap=not out.is_terminal)
    tokens = config.gateway.tokens_file is not None
    ask = curl.chat(url, config.model.served_as, "Hello", bearer=tokens)
    report, here = curl.report(url, bearer=tokens), state_dir_words(state_dir)
    listed = f"RECEIPT: a record of `{program()} records{here}`"
    text = f"{ask}\n{report}\n  {listed}\n{program()} status{here}"
    # Outside of the panel and never wrapped, so that it can be copied.
    out.print(f"\nTry:\n{text}\n\nCtrl-C stops it.", markup=False, soft_wrap=True)


async def _until_failed(stack: "Stack", out: Console, since: datetime) -> ReefError:
    """Print a line for each loop event from `since` on, until a program has died for good."""
    from reefcli.heartbeat import Heartbeat
    from reefkit.bodies import FilesystemBodies
    from reefstack import services

    def say(text: str) -> None:
        line = f"{datetime.now().astimezone():%H:%M:%S}  {text}"
        out.print(line, markup=False, highlight=False, soft_wrap=True)

    urls = {n: stack.urls[n] for n in services.SERVICES if n in stack.supervisor.children}
    bodies = FilesystemBodies(stack.state_dir / "bodies")
    # Only prints: if it fails, the stack goes on.
    lines = asyncio.ensure_future(Heartbeat(stack.kafka_bootstrap, bodies, urls, say, since).run())
    try:
        return await stack.failed()
    finally:
        lines.cancel()
        await asyncio.gather(lines, return_exceptions=True)
