"""System calls of Linux that Python 3.11 lacks."""

import ctypes
import os

# Before a launcher's command. Root's processes have no limit but its count, and what it counts must
# not keep it from the processor: one fork bomb of 13,000 processes took all memory. Where this
# policy is not allowed, it runs as it is: who is not root has the kernel's limit.
AHEAD_OF_ALL = ("/bin/sh", "-c", '/usr/bin/chrt -r -p 1 $$ 2>/dev/null; exec "$@"', "sh")
_NICENESS = 10
_LIBC = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x4000, 0x40000
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _ATTR_RDONLY = 442, -100, 0x8000, 0x1
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_SECUREBITS, _PR_SET_NO_NEW_PRIVS = 1, 24, 28, 38
_SECURE_NOROOT = 0b11
_CAP_SETPCAP, _CAPABILITY_V3, _CAPABILITIES = 8, 0x20080522, 64


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


def call(number: int, *arguments: object) -> int:
    """Make a system call. Raises OSError."""
    given = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    return checked(_LIBC.syscall(ctypes.c_long(number), *given))


def prctl(option: int, *arguments: object) -> int:
    given = [ctypes.c_ulong(item) if isinstance(item, int) else item for item in arguments]
    return checked(_LIBC.prctl(ctypes.c_int(option), *given))


def checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def die_with_parent() -> None:
    prctl(_PR_SET_PDEATHSIG, 9)


def step_back() -> None:
    """Run after serving, and after the launcher that counts this process."""
    if os.sched_getscheduler(0) == os.SCHED_RR:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(_NICENESS)


def unshare(flags: int) -> None:
    checked(_LIBC.unshare(ctypes.c_int(flags)))


def mount_tmpfs(target: str, size: int) -> None:
    data = f"size={size},mode=700,nr_inodes=4096".encode()
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV)
    checked(_LIBC.mount(b"tmpfs", os.fsencode(target), b"tmpfs", flags, data))


def make_all_read_only() -> None:
    """Make every mount of this namespace read-only, without effect on others."""
    checked(_LIBC.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None))
    wanted = _MountAttributes(set=_ATTR_RDONLY)
    size = ctypes.sizeof(wanted)
    call(_MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, ctypes.byref(wanted), size)


def give_up_privileges() -> None:
    """Drop all capabilities for good: a user 0 without them is an ordinary user."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if _may_set_capabilities():
        prctl(_PR_SET_SECUREBITS, _SECURE_NOROOT)
        for capability in range(_CAPABILITIES):
            try:
                prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
            except OSError:  # the kernel knows fewer
                break
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_V3, 0)
    checked(_LIBC.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())))


def _may_set_capabilities() -> bool:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_V3, 0)
    found = (ctypes.c_uint32 * 6)()
    checked(_LIBC.capget(ctypes.byref(header), ctypes.byref(found)))
    return bool(found[0] & 1 << _CAP_SETPCAP)
