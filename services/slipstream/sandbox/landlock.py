"""Landlock: restrict the folders that a process may read and write. See landlock(7) and linux/landlock.h."""

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from slipstream.sandbox.kernel import syscall

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
VERSION_FLAG, PATH_BENEATH = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
RIGHTS_OF_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Version of the interface → the file rights that it knows; later versions use those of version 5."""
NETWORK_SINCE, SCOPES_SINCE = 4, 6
BIND_AND_CONNECT, ABSTRACT_SOCKETS_AND_SIGNALS = 0b11, 0b11
MAKE_SPECIAL = 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11
"""The rights to make devices, sockets and named pipes, which no program gets."""


def abi() -> int:
    """Return the version of the kernel's interface.

    Errors: OSError when Landlock is missing or switched off.
    """
    return syscall(CREATE_RULESET, 0, 0, VERSION_FLAG)


def restrict(*, readable: Sequence[str], writable: Sequence[str], version: int) -> None:
    """Restrict this process to these folders and files for good. Set no_new_privs first. Errors: OSError."""
    rights = RIGHTS_OF_ABI[min(version, max(RIGHTS_OF_ABI))]
    head = struct.pack(
        "=QQQ",
        rights,
        BIND_AND_CONNECT if version >= NETWORK_SINCE else 0,
        ABSTRACT_SOCKETS_AND_SIGNALS if version >= SCOPES_SINCE else 0,
    )
    size = 24 if version >= SCOPES_SINCE else 16 if version >= NETWORK_SINCE else 8
    ruleset = syscall(CREATE_RULESET, ctypes.create_string_buffer(head, len(head)), size, 0)
    try:
        for path in readable:
            _allow(ruleset, path, READ_FILE | READ_DIR)
        for path in writable:
            _allow(ruleset, path, rights & ~EXECUTE & ~MAKE_SPECIAL & ~IOCTL_DEV)
        syscall(RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):
            rights &= READ_FILE | WRITE_FILE
        rule = struct.pack("=Qi", rights, descriptor)
        syscall(ADD_RULE, ruleset, PATH_BENEATH, ctypes.create_string_buffer(rule, len(rule)), 0)
    except OSError as error:
        raise OSError(error.errno or errno.EINVAL, f"Landlock, {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)
