"""Hostile programs in the sandbox: each is held within its bounds, scored as failed, and gone afterwards."""

import asyncio
import contextlib
import os
import socket
import time
from functools import cache
from pathlib import Path

import psutil
import pytest

from reefcommon.errors import BadConfig, Poison
from reefcommon.recipe_context import Limits, Outcome
from reefkit.recipes.sandbox import KINDS, Sandbox, outcome
from reefkit.recipes.sandbox_process import Ended
from tests.fakes.priorities import may_run_ahead, policies_during

SHORT = Limits(wall_s=20.0, cpu_s=5.0, memory_mb=256, file_mb=8, output_kb=16)


@cache
def fault(kind: str) -> str:
    try:
        Sandbox(kind=kind).kind  # noqa: B018 - the first use tries it
    except BadConfig as error:
        return str(error)
    return ""


@pytest.fixture(params=KINDS)
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> Sandbox:
    if request.param == "bubblewrap" and fault("bubblewrap"):
        pytest.skip("bubblewrap is not installed, or may not be used here")
    return Sandbox(tmp_path, kind=request.param)


async def run(sandbox: Sandbox, program: str, limits: Limits = SHORT, **more: object) -> Outcome:
    return await sandbox.run(program, limits=limits, **more)


def left_behind(folder: Path) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            seen = [*process.cmdline(), process.environ().get("HOME", "")]
            if any(str(folder) in text for text in seen):
                found.append(process.pid)
    return found


def test_a_sandbox_of_our_own_works_on_this_machine():
    assert fault("landlock") == ""


async def test_a_program_gets_its_input_and_files_and_gives_its_output(sandbox, tmp_path):
    program = (
        "import json, sys, helper\n"
        "print(json.dumps([helper.double(int(sys.stdin.read())), open('data/a.txt').read()]))\n"
        "print('words', file=sys.stderr)\n"
    )
    files = {"helper.py": "def double(x): return 2 * x\n", "data/a.txt": "here"}
    found = await run(sandbox, program, stdin="21", files=files)
    assert (found.status, found.code, found.stdout) == ("ok", 0, '[42, "here"]\n')
    assert found.stderr == "words\n"
    assert list(tmp_path.iterdir()) == [], "its folder is gone"


async def test_libraries_of_the_host_can_be_imported(sandbox):
    found = await run(sandbox, "import numpy; print(int(numpy.arange(5).sum()))", Limits())
    assert found.stdout == "10\n", found


async def test_a_failure_keeps_its_words(sandbox):
    found = await run(sandbox, "print('so far'); raise ValueError('no')")
    assert (found.status, found.code, found.stdout) == ("failed", 1, "so far\n")
    assert found.stderr.endswith("ValueError: no\n")
    assert (await run(sandbox, "import sys; sys.exit(3)")).code == 3


async def test_a_fork_bomb_starts_no_process(sandbox):
    program = "import os\nwhile True:\n    os.fork()\n"
    found = await run(sandbox, program)
    assert found.status == "failed", found
    assert "PermissionError" in found.stderr


async def test_a_fork_bomb_that_may_start_processes_is_killed_as_a_whole(sandbox, tmp_path):
    program = "import os, time\nwhile True:\n    os.fork() or time.sleep(0.001)\n"
    found = await run(sandbox, program, Limits(wall_s=30, cpu_s=20, processes=4))
    assert found.status in ("killed", "failed"), found
    assert found.seconds < 28
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("processes", [0, 2])
async def test_what_counts_processes_runs_ahead_of_all_and_the_program_last(sandbox, processes):
    """The kernel sets no limit for root: what counts must not wait for what it counts."""
    program = "import os, time; time.sleep(1); print(os.getpriority(os.PRIO_PROCESS, 0))"
    running = run(sandbox, program, Limits(processes=processes))
    found, launchers, programs = await policies_during(running)
    assert found.stdout == f"{min(19, os.nice(0) + 10)}\n", found
    assert (os.SCHED_RR in launchers) == (processes > 0 and may_run_ahead())
    assert programs == {os.SCHED_OTHER}


async def test_processes_are_allowed_up_to_the_limit(sandbox):
    program = (
        "import subprocess; print(subprocess.run(['/bin/echo', 'hi'], capture_output=True).stdout)"
    )
    found = await run(sandbox, program, Limits(processes=4))
    if sandbox.kind == "landlock":  # it allows none
        assert "PermissionError" in found.stderr
    else:
        assert found.stdout == "b'hi\\n'\n", found


async def test_a_memory_eater_meets_its_bound(sandbox):
    found = await run(sandbox, "a = []\nwhile True:\n    a.append(bytearray(10_000_000))\n")
    assert found.status == "memory", found


async def test_memory_outside_the_address_space_is_not_given(sandbox):
    program = "import os\nos.memfd_create('x')\n"
    assert (await run(sandbox, program)).status == "failed"
    program = "open('/dev/shm/reef-test', 'w').write('x')"
    assert (await run(sandbox, program)).status == "failed"


async def test_a_flood_of_output_is_cut_and_the_program_killed(sandbox):
    found = await run(sandbox, "while True:\n    print('x' * 1000)\n")
    assert (found.status, len(found.stdout)) == ("output", 16 * 1024)
    assert found.seconds < 20


async def test_a_flood_of_files_is_stopped(sandbox):
    program = (
        "n = 0\n"
        "while True:\n"
        "    n += 1\n"
        "    with open(f'file{n}', 'wb') as stream:\n"
        "        stream.write(bytes(4 * 1024 * 1024))\n"
    )
    found = await run(sandbox, program)
    assert found.status in ("failed", "output"), found
    big = "open('big', 'wb').write(bytes(20 * 1024 * 1024))"
    assert (await run(sandbox, big)).status in ("failed", "output")


async def test_sockets_cannot_be_opened(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=1)"
        found = await run(sandbox, program)
    assert (found.status, "PermissionError" in found.stderr) == ("failed", True), found
    unix = "import socket; socket.socket(socket.AF_UNIX)"
    assert (await run(sandbox, unix)).status == "failed"


async def test_files_outside_its_folder_are_neither_read_nor_changed(sandbox, tmp_path):
    secret = tmp_path.parent / "secret.txt"
    secret.write_text("key")
    attempts = (
        f"open({str(secret)!r}).read()",
        f"open({str(secret)!r}, 'w')",
        f"import os; os.truncate({str(secret)!r}, 0)",
        f"import os; os.chmod({str(secret)!r}, 0)",
        f"import os; os.utime({str(secret)!r}, (0, 0))",
        f"import os; os.rename({str(secret)!r}, 'mine')",
        f"import os; os.link({str(secret)!r}, 'mine'); open('mine').read()",
        f"import os; os.symlink({str(secret)!r}, 'mine'); open('mine').read()",
        f"open({str(secret.with_name('new'))!r}, 'w')",
        "open('/etc/passwd').read()",
        "open('/tmp/reef-escape', 'w')",
        "import os; os.mkdir('/tmp/reef-escape')",
        "import os; os.open('/usr/bin/env', os.O_RDONLY | os.O_TRUNC)",
        "import os; os.open('/usr/bin/env', os.O_WRONLY)",
    )
    for attempt in attempts:
        found = await run(sandbox, attempt)
        assert found.status == "failed", (attempt, found)
    assert secret.read_text() == "key"
    assert not Path("/tmp/reef-escape").exists()


async def test_a_program_that_never_ends_is_killed_in_time(sandbox, tmp_path):
    found = await run(sandbox, "while True: pass", Limits(wall_s=60, cpu_s=1))
    assert found.status == "timeout", found
    asleep = await run(sandbox, "import time; time.sleep(100)", Limits(wall_s=1, cpu_s=1))
    assert (asleep.status, asleep.seconds < 30) == ("timeout", True)
    assert left_behind(tmp_path) == []


async def test_a_program_that_ignores_signals_is_killed_all_the_same(sandbox):
    program = (
        "import signal, time\n"
        "for number in range(1, 65):\n"
        "    try: signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\n"
        "time.sleep(100)\n"
    )
    found = await run(sandbox, program, Limits(wall_s=1, cpu_s=1))
    assert (found.status, found.seconds < 30) == ("timeout", True)


async def test_grandchildren_that_leave_the_session_die_with_the_program(sandbox, tmp_path):
    program = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        time.sleep(50)\n"
        "    os._exit(0)\n"
        "print('done', flush=True)\n"
    )
    found = await run(sandbox, program, Limits(wall_s=30, cpu_s=5, processes=4))
    if sandbox.kind == "landlock":
        assert found.status == "failed", "no process at all"
    else:
        assert (found.status, found.stdout, found.seconds < 30) == ("ok", "done\n", True)
    assert left_behind(tmp_path) == []


async def test_secrets_of_the_environment_are_not_there(sandbox, monkeypatch):
    monkeypatch.setenv("REEF_SECRET", "hunter2")
    found = await run(sandbox, "import os; print(sorted(os.environ)); print(os.environ)")
    assert found.status == "ok"
    assert "hunter2" not in found.stdout
    spy = (
        "import glob\n"
        "for path in glob.glob('/proc/[0-9]*/environ'):\n"
        "    try: print(open(path, 'rb').read())\n"
        "    except OSError: pass\n"
    )
    found = await run(sandbox, spy, Limits(output_kb=4096))
    assert "hunter2" not in found.stdout, found.status


async def test_other_processes_are_out_of_reach(sandbox):
    program = f"import os, signal\nos.kill({os.getpid()}, signal.SIGTERM)\n"
    assert (await run(sandbox, program)).status == "failed"
    whole_group = "import os, signal; os.kill(-1, signal.SIGKILL); print('alive')"
    assert (await run(sandbox, whole_group)).status in ("ok", "failed", "killed")
    limits = f"import resource; resource.prlimit({os.getppid()}, resource.RLIMIT_NOFILE, (10, 10))"
    assert (await run(sandbox, limits)).status == "failed"
    raised = "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))"
    assert (await run(sandbox, raised)).status == "failed"


@pytest.mark.parametrize(
    ("number", "cpu_s", "status"),
    [(24, 0.4, "timeout"), (9, 1.9, "timeout"), (9, 0.1, "killed"), (11, 1.9, "killed")],
)
def test_a_signal_is_read_with_the_processor_time(number, cpu_s, status):
    report = {"code": None, "signal": number, "cpu_s": cpu_s}
    ended = Ended("", "", 1.0, None, report)
    assert outcome(ended, Limits(cpu_s=2)).status == status


async def test_a_crash_is_no_crash_of_the_host(sandbox):
    found = await run(sandbox, "import ctypes; ctypes.string_at(0)")
    assert (found.status, found.code) == ("killed", None), found
    found = await run(sandbox, "import os; os.abort()")
    assert found.status in ("killed", "failed")


async def test_a_report_cannot_be_forged(sandbox):
    program = (
        "import os\n"
        "for number in range(3, 64):\n"
        "    try: os.write(number, b'{\"code\": 0}')\n"
        "    except OSError: pass\n"
        "os._exit(7)\n"
    )
    found = await run(sandbox, program)
    assert (found.status, found.code) == ("failed", 7)


async def test_a_cancelled_call_leaves_no_program_behind(sandbox, tmp_path):
    task = asyncio.create_task(run(sandbox, "import time; time.sleep(60)", Limits(wall_s=60)))
    await asyncio.sleep(0.8)
    task.cancel()
    await asyncio.wait([task])
    for _ in range(400):
        if not left_behind(tmp_path):
            break
        await asyncio.sleep(0.05)
    assert left_behind(tmp_path) == []


async def test_a_file_outside_the_folder_is_refused(sandbox):
    with pytest.raises(Poison, match="not a path"):
        await sandbox.run("pass", files={"../x": ""})


async def test_programs_run_side_by_side(tmp_path):
    sandbox = Sandbox(tmp_path, at_once=2)
    began = time.monotonic()
    program = "import time; time.sleep(0.5); print('x')"
    found = await asyncio.gather(*(run(sandbox, program) for _ in range(4)))
    assert [outcome.stdout for outcome in found] == ["x\n"] * 4
    assert time.monotonic() - began > 0.9, "two at a time"


async def test_without_a_working_kind_no_program_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("reefkit.recipes.sandbox._PYTHON", "/nonexistent/python")
    sandbox = Sandbox(tmp_path)
    with pytest.raises(BadConfig, match="install bubblewrap"):
        await sandbox.run("print(1)")
    assert "none works" in sandbox.describe()
