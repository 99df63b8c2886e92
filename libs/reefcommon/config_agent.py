"""`evaluation.agent` of `serve.yaml`: the agent that works on held-out tasks."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Isolation = Literal["bubblewrap", "local"]


class AgentSection(BaseModel):
    """The agent that works on held-out tasks, each time in a fresh home and folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    adapter: str = "pi"
    """a folder of libs/reefagents, or package.module of another agent"""
    isolation: Isolation = "bubblewrap"
    """bubblewrap: no files but its own, no network but the gateway; local: with the rights of the
    evaluator, for agents and tasks that are trusted"""
    binary: Path | None = None
    """the agent's program; absent: installed once from npm, below the state directory"""
    timeout_s: float = Field(600.0, gt=0, le=86_400)
    """longest run; a run that is stopped goes to the verifier with this status"""
    memory_mb: int = Field(4096, ge=64, le=1 << 20)
    """memory of a run, with all that it starts; looked at five times a second"""
    processes: int = Field(256, ge=8, le=65_536, description="processes of a run at the same time")
    repeats: int = Field(1, ge=1, le=64, description="runs of each side on each task")
    at_once: int = Field(2, ge=1, le=64, description="runs of a scenario at the same time")
    key_file: Path | None = None
    """file that holds the token for the gateway; absent: that of `models.served`"""
