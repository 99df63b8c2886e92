"""A seccomp filter: which system calls a confined program may make."""

# It refuses: sockets, signals to others, tracing, new namespaces and mounts, memory outside the
# address space, changes of files by name that Landlock does not know (modes, owners, times), and
# with `processes` False every new process. A refused call fails with EPERM.

import ctypes
import errno
import os
import platform
import struct

from reefkit.jail.kernel import prctl

_PR_SET_SECCOMP, _FILTER = 22, 2
_LOAD, _EQUAL, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x45, 0x54, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_CLONE_THREAD, _CLONE_NAMESPACES = 0x00010000, 0x7E020080
_NUMBER, _ARCHITECTURE, _X32 = 0, 4, 0x40000000

# name -> (x86_64, aarch64); None: the architecture lacks it
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "kcmp": (312, 272),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "io_uring_setup": (425, 425),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "truncate": (76, 45),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fsetxattr": (190, 7),
    "fremovexattr": (199, 16),
    "setxattrat": (463, 463),
    "removexattrat": (466, 466),
}
_NEW_PROCESS = ((57, None), (58, None))  # fork, vfork
_CLONE, _CLONE3, _OPENAT2 = (56, 220), 435, 437
_KILLS = ((62, 129), (234, 131))  # kill, tgkill
_PRCTL, _PRLIMIT, _OPEN, _OPENAT = (157, 167), (302, 261), (2, None), (257, 56)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def install(*, processes: bool, own_pid: int | None) -> None:
    """Filter this process from now on, over `execve` too. Privileges must be given up.

    `own_pid`: signals may go to this process only; None: to all that it sees.

    Raises:
        OSError: the kernel has no filters, or no table is there for this machine.
    """
    if platform.machine() not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no table of system calls for {platform.machine()}")
    code = _assembled(processes=processes, own_pid=own_pid)
    prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(_Program(len(code) // 8, code)), 0, 0)


def _assembled(*, processes: bool, own_pid: int | None) -> bytes:
    column, architecture = _ARCHITECTURES[platform.machine()]
    code = [
        _line(_LOAD, _ARCHITECTURE),
        _line(_EQUAL, architecture, 1, 0),
        _line(_RETURN, _KILL),
        _line(_LOAD, _NUMBER),
    ]
    if column == 0:  # the same calls under other numbers
        code += [_line(_ANY_BIT, _X32, 0, 1), _line(_RETURN, _KILL)]
    refused = list(_CALLS.values()) + (list(_NEW_PROCESS) if not processes else [])
    for number in refused:
        code += _refuse(number[column])
    # glibc falls back to clone and openat, whose flags a filter can read.
    for number_of_all in (_CLONE3, _OPENAT2):
        code += _refuse(number_of_all, errno.ENOSYS)
    if processes:
        code += _refuse_bits(_CLONE[column], 0, _CLONE_NAMESPACES)
    else:
        code += _refuse_equal(_CLONE[column], 0, _CLONE_THREAD, 0)
    if own_pid is not None:
        for number in _KILLS:
            code += _refuse_other(number[column], 0, own_pid)
    code += _refuse_equal(_PRCTL[column], 0, 0xFFFFFFFF, 1)  # PR_SET_PDEATHSIG
    code += _refuse_other(_PRLIMIT[column], 0, 0)
    # Early Landlock lets a file that may be read be opened for reading and emptied.
    mask = os.O_TRUNC | os.O_ACCMODE
    code += _refuse_equal(_OPEN[column], 1, mask, os.O_TRUNC)
    code += _refuse_equal(_OPENAT[column], 2, mask, os.O_TRUNC)
    return b"".join([*code, _line(_RETURN, _ALLOW)])


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int | None, error: int = errno.EPERM) -> list[bytes]:
    if number is None:
        return []
    return [_line(_EQUAL, number, 0, 1), _line(_RETURN, _ERRNO | error)]


def _refuse_equal(number: int | None, argument: int, mask: int, value: int) -> list[bytes]:
    """Refuse the call if (argument & mask) == value."""
    return _refuse_if(number, argument, [_line(_AND, mask), _line(_EQUAL, value, 0, 1)])


def _refuse_bits(number: int | None, argument: int, bits: int) -> list[bytes]:
    return _refuse_if(number, argument, [_line(_ANY_BIT, bits, 0, 1)])


def _refuse_other(number: int | None, argument: int, allowed: int) -> list[bytes]:
    return _refuse_if(number, argument, [_line(_EQUAL, allowed, 1, 0)])


def _refuse_if(number: int | None, argument: int, test: list[bytes]) -> list[bytes]:
    if number is None:
        return []
    # The low half of a 64-bit argument: pids and flags are 32 bits wide.
    refusal = _line(_RETURN, _ERRNO | errno.EPERM)
    body = [_line(_LOAD, 16 + 8 * argument), *test, refusal, _line(_LOAD, _NUMBER)]
    return [_line(_EQUAL, number, 0, len(body)), *body]
