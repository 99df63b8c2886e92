"""A run of `reef demo --harness`: the scripted model, the stack, and the acts."""

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner

from recipes.harness_evolve.examples.labels.model import reply
from recipes.reflection.examples.server import serving
from reefcli.demo import report
from reefcli.demo.attempt import forget
from reefcli.demo.harness.acts import agent_act, plain_act
from reefcli.demo.harness.machine import Machine, missing
from reefcli.demo.harness.stage import staged
from reefcli.errors import CommandFailed
from reefcommon import config as serve_config
from reefcommon.config import ServeConfig
from reefcommon.config_agent import AgentSection
from reefcommon.errors import BadConfig, ReefError, Unavailable
from reefkit.episodes import isolation
from reefkit.episodes.program import program_of
from reefstack.embedded import Options, embedded_stack
from reefstack.errors import CannotStart, StackFailed
from reefstack.view import view_for

CONFIG = Path(__file__).parents[4] / "recipes/harness_evolve/examples/labels/serve.yaml"
ACTS = ("agent", "plain")
_STATUS_EVERY_S = 15.0
# all but those that serve and train weights: the model is scripted
_ROLES = frozenset({"kafka", "redis", "publisher", "experience", "evaluator", "harness", "gateway"})


@dataclass(slots=True)
class HarnessDemo:
    state_dir: Path
    console: Console
    acts: Sequence[str] = ACTS
    lines: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _spinner: Spinner = field(default_factory=lambda: Spinner("dots", ""))
    _said_at: float = 0.0

    def say(self, text: str) -> None:
        """Print a line with the seconds since the start, and keep it."""
        line = f"[{time.monotonic() - self.began:6.1f} s] {text}"
        self.lines.append(line)
        self._said_at = time.monotonic()
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def status(self, text: str) -> None:
        """Show a text below the lines of a terminal; a pipe gets it every 15 s."""
        self._spinner.update(text=text)
        if not self.console.is_terminal and time.monotonic() - self._said_at >= _STATUS_EVERY_S:
            self.say(text)

    def run(self, *, fresh: bool = True) -> dict[str, Any]:
        """Run the acts. Returns the facts; `held` says if all came true. Blocks."""
        facts: dict[str, Any] = {"acts": {}, "held": False, "failure": ""}
        try:
            if fresh:
                _forget(self.state_dir)
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(self._run(facts["acts"]))
        except (CannotStart, StackFailed, ReefError, CommandFailed) as error:
            facts["failure"] = str(error)
        except (openai.OpenAIError, httpx.HTTPError, TimeoutError) as error:
            facts["failure"] = f"{type(error).__name__}: {error}"
        done = facts["acts"]
        facts["held"] = all(name in done and done[name]["held"] for name in self.acts)
        facts["seconds"] = round(time.monotonic() - self.began, 1)
        if facts["failure"]:
            self.say(f"stopped: {facts['failure']}")
        held = "came true" if facts["held"] else "DID NOT come true"
        self.say(f"what was to be shown {held}, in {facts['seconds']:.0f} s")
        report.keep(self.state_dir, self.lines, facts)
        return facts

    async def _run(self, facts: dict[str, Any]) -> None:
        self.say("a model that knows nothing of labels and greetings; its harness is to learn both")
        config = serve_config.load(CONFIG)
        agents = self.state_dir / "agents"
        acts = list(self.acts)
        if "agent" in acts:
            try:
                config = await self._with_agent(config, agents)
            except (BadConfig, Unavailable) as error:
                self.say(f"act one is left out: {error}")
                facts["agent"] = {"held": False, "failure": str(error)}
                acts.remove("agent")
        if not acts:
            return
        async with contextlib.AsyncExitStack() as exits:
            url = exits.enter_context(serving(reply))
            config = _changed(config, {"serving": {"engines": [url]}})
            options = Options(config_path=CONFIG, only=_ROLES)
            with view_for(self.console) as startup:
                stack = await exits.enter_async_context(
                    embedded_stack(config, self.state_dir, options, listener=startup)
                )
            stage = await exits.enter_async_context(staged(stack, self.say, self.status))
            if self.console.is_terminal:
                exits.enter_context(Live(self._spinner, console=self.console, transient=True))
            for name in acts:
                machine = Machine(self.state_dir.resolve() / "user", agents)
                facts[name] = await (
                    agent_act(stage, machine) if name == "agent" else plain_act(stage)
                )
            self.status("stopping everything in order")

    async def _with_agent(self, config: ServeConfig, agents: Path) -> ServeConfig:
        if lacking := missing():
            raise BadConfig(f"it needs {lacking}; act two needs nothing (--arms plain)")
        section, kind = config.evaluation.agent, "bubblewrap"
        try:
            await asyncio.to_thread(isolation.check, "bubblewrap")
        except BadConfig as error:
            self.say(f"episodes are not isolated here: {error}")
            kind = "local"
        self.say(f"fetching Pi from npm, if it is not there: a minute at most (runs: {kind})")
        began = time.monotonic()
        got = asyncio.create_task(asyncio.to_thread(program_of, section, agents))
        while not got.done():
            await asyncio.wait([got], timeout=15)
            if not got.done():
                self.say(f"npm is at work, {time.monotonic() - began:.0f} s")
        got.result()
        self.say(f"Pi is there, after {time.monotonic() - began:.0f} s")
        agent = AgentSection(**{**section.model_dump(), "isolation": kind})
        return _changed(config, {"evaluation": {"agent": agent.model_dump(mode="json")}})


def _changed(config: ServeConfig, values: dict[str, dict[str, Any]]) -> ServeConfig:
    raw: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
    for section, part in values.items():
        raw[section] = {**raw.get(section, {}), **part}
    return serve_config.parse(json.dumps(raw), source="serve.yaml of the demonstration")


def _forget(state: Path) -> None:
    # The agent stays: npm takes a minute.
    aside = state.with_name(f"{state.name}-agents")
    if (state / "agents").is_dir() and not aside.exists():
        (state / "agents").rename(aside)
    forget(state)
    if aside.is_dir():
        state.mkdir(parents=True, exist_ok=True)
        aside.rename(state / "agents")
