"""Landlock: which files a process may read and write. Needs no privileges."""

import ctypes
import errno
import os
from collections.abc import Iterable

from reefkit.jail.kernel import call

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_ASK_VERSION, _BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_FIRST_VERSION = (1 << 13) - 1
_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_READ = _EXECUTE | _READ_FILE | _READ_DIR
# No device files, and no sockets in the file system.
_MAKE_DEVICES = 1 << 6 | 1 << 9 | 1 << 11
_TCP, _SCOPES = 0b11, 0b11  # bind and connect; abstract sockets and signals


class _Ruleset(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("files", "network", "scopes")]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32)]


def version() -> int:
    """Return the version of the kernel's Landlock; 0 if there is none."""
    try:
        return call(_CREATE, None, 0, _ASK_VERSION)
    except OSError:
        return 0


def restrict(readable: Iterable[str], writable: Iterable[str], devices: Iterable[str]) -> None:
    """Confine this process and its children. Paths that do not exist are passed over.

    Raises:
        OSError: the kernel has no Landlock, or privileges are not given up yet.
    """
    known = version()
    if not known:
        raise OSError(errno.ENOSYS, "the kernel has no Landlock")
    newer = ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL))
    handled = _FIRST_VERSION | sum(right for since, right in newer if known >= since)
    rules = _Ruleset(handled, _TCP if known >= 4 else 0, _SCOPES if known >= 6 else 0)
    size = 8 if known < 4 else 16 if known < 6 else 24
    ruleset = call(_CREATE, ctypes.byref(rules), size, 0)
    rights = (
        (readable, _READ),
        (writable, handled & ~_MAKE_DEVICES),
        (devices, _READ_FILE | _WRITE_FILE),
    )
    for paths, allowed in rights:
        for path in paths:
            _allow(ruleset, path, allowed & handled)
    call(_RESTRICT, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, allowed: int) -> None:
    try:
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        rights = allowed if os.path.isdir(path) else allowed & _FILES
        call(_ADD, ruleset, _BENEATH, ctypes.byref(_Beneath(rights, found)), 0)
    finally:
        os.close(found)
