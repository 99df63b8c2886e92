"""Starts a program inside the sandbox and reports its end.

`python -I -S -c BOOT <job file>`; the job is JSON (see `Job`). The report, one line of JSON on the
inherited pipe, is `{code, signal, cpu_s, memory_mb}`, `{stopped: reason}` or `{fault: text}`.
"""

# namespaces   this process --unshare, fork--> init of the namespace --fork--> the program
# landlock     this process --fork--> the program, which may start no process
# bubblewrap   bwrap --> this process --fork--> the program
#
# When the process above dies, the kernel kills the one below; when an init ends, its namespace.

import contextlib
import json
import os
import resource
import signal
import sys
import time
from typing import Any, NoReturn, TypedDict

from reefkit.jail import kernel, landlock, seccomp

_NAMESPACES = (
    *(kernel.CLONE_NEWUSER, kernel.CLONE_NEWNS, kernel.CLONE_NEWPID),
    *(kernel.CLONE_NEWNET, kernel.CLONE_NEWIPC, kernel.CLONE_NEWUTS),
)
_MB = 1024 * 1024
_LOOK_EVERY_S = 0.02
_OPEN_FILES, _THREADS = 64, 64
_STACK_BYTES = 8 * _MB
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_RUN = (
    "import runpy, sys; sys.path[:0] = ['.']; sys.path += sys.argv[1:];"
    " sys.argv[:] = ['program.py']; runpy.run_path('program.py', run_name='__main__')"
)


class Job(TypedDict):
    """`work`: the folder of the program; `readable`: paths; `site`: for `sys.path`."""

    kind: str
    work: str
    readable: list[str]
    site: list[str]
    files: dict[str, str]
    environment: dict[str, str]
    report: int
    cpu_s: float
    memory_mb: int
    file_mb: int
    processes: int


def main(path: str) -> None:
    kernel.die_with_parent()
    with contextlib.suppress(OSError):  # if memory is short, the program ends, and no service
        _write("/proc/self/oom_score_adj", "1000")
    with open(path, encoding="utf-8") as stream:
        job: Job = json.load(stream)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        if job["kind"] == "namespaces":
            _enter_namespaces(job)
        else:
            _supervise(job)
    except OSError as error:
        _report(job, fault=str(error))


def _enter_namespaces(job: Job) -> None:
    user, group = os.getuid(), os.getgid()
    kernel.unshare(sum(_NAMESPACES))
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")
    kernel.make_all_read_only()
    kernel.mount_tmpfs(job["work"], job["file_mb"] * _MB)
    init = os.fork()  # the first process of the new pid namespace
    if init == 0:
        kernel.die_with_parent()
        _supervise(job)
        os._exit(0)
    os.waitpid(init, 0)


def _supervise(job: Job) -> None:
    _write_files(job)
    most = _processes_in_namespace() + 1 + job["processes"] if job["processes"] else 0
    reading, writing = os.pipe()
    program = os.fork()
    if program == 0:
        os.close(reading)
        _become_program(job, writing)
    os.close(writing)
    with os.fdopen(reading) as stream:  # closed by exec
        fault = stream.read()
    if fault:
        _report(job, fault=fault)
        return
    while True:
        ended, status, used = os.wait4(program, os.WNOHANG if job["processes"] else 0)
        if ended:
            break
        if _processes_in_namespace(most) > most:
            _report(job, stopped="processes")
            return  # the namespace ends with its init
        time.sleep(_LOOK_EVERY_S)
    code = os.waitstatus_to_exitcode(status)
    facts = {"cpu_s": used.ru_utime + used.ru_stime, "memory_mb": used.ru_maxrss // 1024}
    _report(job, code=code if code >= 0 else None, signal=max(-code, 0), **facts)


def _become_program(job: Job, faults: int) -> NoReturn:
    try:
        kernel.die_with_parent()
        os.chdir(job["work"])
        os.dup2(os.open("stdin", os.O_RDONLY), 0)
        os.dup2(faults, 3)
        os.set_inheritable(3, False)
        os.closerange(4, 256)
        faults = 3
        kernel.step_back()
        _limit(job)
        for number in range(1, signal.NSIG):
            if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
                signal.signal(number, signal.SIG_DFL)
        _confine(job)
        python = sys.executable
        options = ["-I", "-S", "-B", "-X", "utf8"]
        os.execve(python, [python, *options, "-c", _RUN, *job["site"]], job["environment"])
    except BaseException as error:  # noqa: BLE001  # told to the host
        os.write(faults, f"{type(error).__name__}: {error}".encode())
    os._exit(126)


def _limit(job: Job) -> None:
    cpu_s = max(1, round(job["cpu_s"]))
    bounds = {
        resource.RLIMIT_CPU: (cpu_s, cpu_s + 1),
        resource.RLIMIT_AS: (job["memory_mb"] * _MB,) * 2,
        resource.RLIMIT_FSIZE: (job["file_mb"] * _MB,) * 2,
        resource.RLIMIT_NOFILE: (_OPEN_FILES,) * 2,
        resource.RLIMIT_STACK: (_STACK_BYTES,) * 2,
        resource.RLIMIT_MEMLOCK: (0, 0),
        resource.RLIMIT_MSGQUEUE: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
    }
    if job["kind"] != "landlock":
        # Of the user inside the namespace; the kernel does not count those of root.
        bounds[resource.RLIMIT_NPROC] = (job["processes"] + _THREADS,) * 2
    for name, bound in bounds.items():
        resource.setrlimit(name, bound)


def _confine(job: Job) -> None:
    kernel.give_up_privileges()
    if job["kind"] != "bubblewrap" or landlock.version():
        landlock.restrict(job["readable"], [job["work"]], _DEVICES)
    own = os.getpid() if job["kind"] == "landlock" else None
    seccomp.install(processes=job["processes"] > 0 and own is None, own_pid=own)


def _write_files(job: Job) -> None:
    for name, text in job["files"].items():
        path = os.path.join(job["work"], name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        _write(path, text)


def _processes_in_namespace(most: int = sys.maxsize) -> int:
    # The folder of the outer namespace, or of bubblewrap's own: both list these processes, the
    # newest last. Above `most` no more are counted: each costs time in which others start.
    own, found = os.readlink("/proc/self/ns/pid"), 0
    for name in reversed(os.listdir("/proc")):
        if name.isdigit() and found <= most:
            try:
                found += os.readlink(f"/proc/{name}/ns/pid") == own
            except OSError:
                continue
    return found


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)


def _report(job: Job, **facts: Any) -> None:
    os.write(job["report"], json.dumps(facts).encode())
