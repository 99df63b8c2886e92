"""The commands of docs/connect-an-agent.md, run as printed against a gateway, with a small npm."""

import asyncio
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.agents.machine import Machine
from tests.gateway.conftest import bench_of

PAGE = (Path(__file__).parents[2] / "docs/connect-an-agent.md").read_text()
BLOCKS = {
    language: re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    for language in ("bash", "python")
}


async def ran(*words: str, stdin: str = "", env: dict[str, str], cwd: Path) -> tuple[int, str]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *words, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT, env=env, cwd=cwd
    )
    said, _ = await asyncio.wait_for(process.communicate(stdin.encode()), 90)
    assert process.returncode is not None
    return process.returncode, said.decode()


@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
@pytest.mark.parametrize("name", ["pi", "claude-code", "codex"])
async def test_the_commands(name: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "home", name=name)
    machine.prepare()
    env = {**machine.env, "PATH": f"{machine.wrapper.parent}:{machine.env['PATH']}"}
    async with bench_of(state_dir=tmp_path / "state") as bench:
        script = "\n".join(BLOCKS["bash"]).replace("http://localhost:8900", bench.url)
        script = script.replace("adapter=pi", f"adapter={name}").replace("reef-pi", f"reef-{name}")
        install, *rest = script.strip().splitlines()
        status, said = await ran("bash", stdin=install, env=env, cwd=tmp_path)
        assert (status, f"reef-{name} is installed" in said) == (0, True), said
        receipt = (await bench.chat()).headers["x-reef-agent-record-id"]
        (machine.root / "receipts").write_text(f"{receipt}\n")
        logs = (
            machine.root / "home" / {"claude-code": "projects", "codex": "sessions"}.get(name, "")
        )
        logs.mkdir(exist_ok=True)
        (logs / "one.jsonl").write_text(f'{{"id":"msg_{receipt}"}}\n')
        for line in filter(None, rest):
            status, said = await ran("bash", stdin=line, env=env, cwd=tmp_path)
            assert status == 0, (line, said)
        assert len(rest) >= 5
        assert f"reported on {receipt}" in said
        assert [event.references for event in bench.log.reports] == [(receipt,)]


@pytest.mark.parametrize("number", range(len(BLOCKS["python"])))
async def test_the_clients(number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with bench_of(state_dir=tmp_path / "state") as bench:
        code = BLOCKS["python"][number].replace("http://localhost:8900", bench.url)
        names: dict[str, Any] = {}
        running = asyncio.create_task(asyncio.to_thread(exec, code, names))
        while not running.done():
            for record in bench.log.records:
                row = {"record": record.model_dump(mode="json")}
                bench.reads.rows[f"/records/{record.event_id}"] = row
            await asyncio.sleep(0.05)
        await running
        names["client"].close()
        assert bench.log.records[-1].event_id in capsys.readouterr().out
