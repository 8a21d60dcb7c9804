"""Linux system calls that Python's standard library does not offer, by ctypes."""

import ctypes
import os

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 22, 36, 38
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x40000
CAPABILITY_VERSION_3 = 0x20080522
CAPSET = {"x86_64": 126, "aarch64": 91}

_libc = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> int:
    """Return the result of a call. Errors: OSError with errno when the result is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def syscall(number: int, *arguments: object) -> int:
    """Make a system call by number; integers are passed as 64 bits. Errors: OSError."""
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return check(_libc.syscall(ctypes.c_long(number), *words))


def prctl(option: int, value: object = 0, third: object = 0) -> None:
    """Call prctl(2) on this process. Errors: OSError."""
    arguments = [ctypes.c_ulong(item) if isinstance(item, int) else item for item in (value, third, 0, 0)]
    check(_libc.prctl(option, *arguments))


def unshare(flags: int) -> None:
    """Move this process into new namespaces. Errors: OSError; in a pod often PermissionError."""
    check(_libc.unshare(flags))


def mount(kind: str | None, target: str, flags: int, options: str = "") -> None:
    """Mount a new file system of this kind; with None change the flags of an existing mount.

    Errors: OSError.
    """
    kind_bytes = kind.encode() if kind else None
    check(_libc.mount(kind_bytes, os.fsencode(target), kind_bytes, ctypes.c_ulong(flags), options.encode()))


def drop_capabilities() -> None:
    """Drop every capability of this process. Errors: OSError."""
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    no_capabilities = (ctypes.c_uint32 * 6)()
    syscall(CAPSET[os.uname().machine], header, no_capabilities)
