"""A seccomp filter: the program of classic BPF that lets a few system calls pass.

See linux/seccomp.h and linux/filter.h. Its layout:  arch? → x32? → calls with arguments → calls → EPERM.
"""

import ctypes
import errno
import os
import resource
import struct
from collections.abc import Sequence
from typing import NamedTuple

from slipstream.sandbox.kernel import PR_SET_SECCOMP, prctl
from slipstream.sandbox.syscalls import (
    ALLOWED,
    CLONE,
    CLONE3,
    FCNTL,
    IOCTL,
    OPEN,
    OPENAT,
    PRLIMIT64,
    SOCKETPAIR,
)

SECCOMP_MODE_FILTER = 2
KILL_PROCESS, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
LOAD, JUMP, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, AND, RETURN = 0x20, 0x05, 0x15, 0x35, 0x54, 0x06
NUMBER_OFFSET, ARCH_OFFSET, ARGUMENTS_OFFSET = 0, 4, 16
X32_BIT = 0x40000000
CLONE_THREAD = 0x00010000
NEW_NAMESPACES = 0x7E020080
"""Every CLONE_NEW* flag."""
UNIX, STREAM, TYPE_BITS = 1, 1, 0x7FF
WHOLE = 0xFFFFFFFF
FCNTL_COMMANDS = (0, 1, 2, 3, 4, 5, 6, 7, 1030)
"""Duplicate, flags and locks; not F_SETOWN and F_SETSIG, by which the kernel signals others."""
IOCTL_REQUESTS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""


class Machine(NamedTuple):
    """An architecture: its audit number, and its column in the tables of calls."""

    audit: int
    column: int


MACHINES = {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1)}
Instruction = tuple[int, int, int, int]


def program(machine: str) -> bytes:
    """The filter for an architecture, as `uname -m` says it. Errors: OSError for one without a table."""
    if machine not in MACHINES:
        raise OSError(errno.ENOSYS, f"no table of system calls for {machine}")
    audit, column = MACHINES[machine]
    numbers = [row[column] for row in ALLOWED.values()]
    instructions = [
        *_load(ARCH_OFFSET),
        (JUMP_IF_EQUAL, 1, 0, audit),
        (RETURN, 0, 0, KILL_PROCESS),
        *_load(NUMBER_OFFSET),
        (JUMP_IF_AT_LEAST, 0, 1, X32_BIT),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
        *_when(CLONE3[column], [(RETURN, 0, 0, ERRNO | errno.ENOSYS)]),  # so that the C library uses clone
        *_when(CLONE[column], _threads_only()),
        *_when(OPEN[column], _no_truncated_reading(1)),
        *_when(OPENAT[column], _no_truncated_reading(2)),
        *_when(PRLIMIT64[column], _own_limits()),
        *_when(SOCKETPAIR[column], _pair_of_streams()),  # no addresses
        *_when(FCNTL[column], _among(1, WHOLE, FCNTL_COMMANDS)),
        *_when(IOCTL[column], _among(1, WHOLE, IOCTL_REQUESTS)),
        *_any_of([number for number in numbers if number is not None]),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def install(code: bytes) -> None:
    """Put this process under a filter, for ever; no_new_privs comes first. Errors: OSError."""
    buffer = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.create_string_buffer(head, len(head)))


def this_machine() -> str:
    """The architecture that the kernel runs on."""
    return os.uname().machine


def _load(offset: int) -> list[Instruction]:
    return [(LOAD, 0, 0, offset)]


def _when(number: int | None, then: Sequence[Instruction]) -> list[Instruction]:
    """For one call, where the machine has it: instructions that end in a verdict."""
    return [] if number is None else [(JUMP_IF_EQUAL, 0, len(then), number), *then]


def _threads_only() -> list[Instruction]:
    """Allow a clone that makes a thread, and no new process and no namespace."""
    return [
        *_load(ARGUMENTS_OFFSET),
        (AND, 0, 0, CLONE_THREAD | NEW_NAMESPACES),
        (JUMP_IF_EQUAL, 0, 1, CLONE_THREAD),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
    ]


def _no_truncated_reading(argument: int) -> list[Instruction]:
    """Allow to open a file, but not to empty one that is only read, at which Landlock looks since ABI 3."""
    refuse = (RETURN, 0, 0, ERRNO | errno.EPERM)
    return [
        *_load(ARGUMENTS_OFFSET + 8 * argument),
        (AND, 0, 0, os.O_TRUNC | os.O_ACCMODE),
        *_when(os.O_TRUNC | os.O_RDONLY, [refuse]),
        *_when(os.O_TRUNC | os.O_ACCMODE, [refuse]),  # neither reads nor writes
        (RETURN, 0, 0, ALLOW),
    ]


def _own_limits() -> list[Instruction]:
    """Allow limits of process 0, which is itself, but to change that of its time of a core.

    At that one the kernel sends a SIGKILL, which would look as if the machine had no memory left.
    """
    allow, refuse = (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, ERRNO | errno.EPERM)
    process, kind, new = (ARGUMENTS_OFFSET + 8 * argument for argument in range(3))
    return [
        *_load(process),
        (JUMP_IF_EQUAL, 1, 0, 0),
        refuse,
        *_load(kind),
        (JUMP_IF_EQUAL, 0, 4, resource.RLIMIT_CPU),
        *_load(new),
        (JUMP_IF_EQUAL, 0, 3, 0),
        *_load(new + 4),
        (JUMP_IF_EQUAL, 0, 1, 0),
        allow,
        refuse,
    ]


def _pair_of_streams() -> list[Instruction]:
    """Allow a pair of streams of this machine; to ask for another family may load a kernel module."""
    return [
        *_load(ARGUMENTS_OFFSET),
        (JUMP_IF_EQUAL, 1, 0, UNIX),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
        *_among(1, TYPE_BITS, [STREAM]),
    ]


def _among(argument: int, mask: int, values: Sequence[int]) -> list[Instruction]:
    """Allow it when the low half of an argument, masked, is one of the values."""
    return [
        *_load(ARGUMENTS_OFFSET + 8 * argument),
        (AND, 0, 0, mask),
        *_any_of(values),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
    ]


def _any_of(numbers: Sequence[int]) -> list[Instruction]:
    return [step for number in numbers for step in _when(number, [(RETURN, 0, 0, ALLOW)])]
