"""`llm-comply` (PyPI) in the three formats, with its schemas, against the gateway."""

import asyncio
import json
import sys
from typing import Any

import pytest

from .conftest import bench_of
from .scripted_engine import Message, ScriptedEngine, call

# A request without a model is served here by the model there is.
OWN = ["HTTP 200 (expected [400, 422])"]
KEYS = ("--auth-header", "x-api-key", "--no-bearer", "-H", "anthropic-version:2023-06-01")


def script(body: dict[str, Any]) -> Message:
    nulls = {"refusal": None, "annotations": []}
    if tools := body.get("tools"):
        made = call(1, tools[0]["function"]["name"], '{"location": "San Francisco"}')
        return {**nulls, "content": None, "tool_calls": [made]}
    return {**nulls, "content": "Hello there, friend."}


@pytest.mark.parametrize("form", ["openai-chat", "anthropic", "open-responses"])
async def test_the_format_complies(form: str) -> None:
    async with bench_of(stub=ScriptedEngine(script)) as bench:
        command = [
            "-m",
            "llm_comply.cli",
            "--format",
            form,
            "-u",
            f"{bench.url}/v1",
            "-k",
            "k",
            "-m",
            "reef",
            "--json",
        ]
        command += KEYS if form == "anthropic" else ()
        ran = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await asyncio.wait_for(ran.communicate(), 60)
    assert out, err.decode()
    results = json.loads(out)["results"]
    assert len(results) >= 9
    allowed = [] if form == "anthropic" else OWN
    wrong = {
        row["id"]: row["errors"]
        for row in results
        if row["status"] == "failed" and row["errors"] != allowed
    }
    assert wrong == {}
    assert sum(row["status"] == "passed" for row in results) >= 7
