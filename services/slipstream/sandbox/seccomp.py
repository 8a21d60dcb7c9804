"""The seccomp filter: a classic BPF program that allows a list of system calls.

See linux/seccomp.h and linux/filter.h. Order of the checks: architecture → x32 → calls whose arguments count
→ other allowed calls → EPERM.
"""

import ctypes
import errno
import os
import resource
import struct
from collections.abc import Sequence
from typing import NamedTuple

from slipstream.sandbox import kernel, syscalls

SECCOMP_MODE_FILTER = 2
KILL_PROCESS, ERRNO, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
LOAD, JUMP, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, AND, RETURN = 0x20, 0x05, 0x15, 0x35, 0x54, 0x06
NUMBER_OFFSET, ARCH_OFFSET, ARGUMENTS_OFFSET = 0, 4, 16
X32_BIT = 0x40000000
CLONE_THREAD = 0x00010000
NEW_NAMESPACES = 0x7E020080
"""All CLONE_NEW* flags."""
UNIX, STREAM, TYPE_BITS = 1, 1, 0x7FF
ALL_BITS = 0xFFFFFFFF
FCNTL_COMMANDS = (0, 1, 2, 3, 4, 5, 6, 7, 1030)
"""Duplicates, flags and locks; not F_SETOWN and F_SETSIG, which make the kernel signal other processes."""
IOCTL_REQUESTS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""


class Machine(NamedTuple):
    """An architecture: its audit number, and its column in the tables of syscalls.py."""

    audit: int
    column: int


MACHINES = {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1)}
Instruction = tuple[int, int, int, int]


def program(machine: str) -> bytes:
    """Return the filter for an architecture (`uname -m`).

    Errors: OSError for an architecture without a table.
    """
    if machine not in MACHINES:
        raise OSError(errno.ENOSYS, f"no table of system calls for {machine}")
    audit, column = MACHINES[machine]
    numbers = [row[column] for row in syscalls.ALLOWED.values()]
    instructions = [
        *_load(ARCH_OFFSET),
        (JUMP_IF_EQUAL, 1, 0, audit),
        (RETURN, 0, 0, KILL_PROCESS),
        *_load(NUMBER_OFFSET),
        (JUMP_IF_AT_LEAST, 0, 1, X32_BIT),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
        # without clone3 the C library uses clone
        *_when(syscalls.CLONE3[column], [(RETURN, 0, 0, ERRNO | errno.ENOSYS)]),
        *_when(syscalls.CLONE[column], _threads_only()),
        *_when(syscalls.OPEN[column], _no_truncated_reading(1)),
        *_when(syscalls.OPENAT[column], _no_truncated_reading(2)),
        *_when(syscalls.PRLIMIT64[column], _own_limits()),
        *_when(syscalls.SOCKETPAIR[column], _pair_of_streams()),
        *_when(syscalls.FCNTL[column], _among(1, ALL_BITS, FCNTL_COMMANDS)),
        *_when(syscalls.IOCTL[column], _among(1, ALL_BITS, IOCTL_REQUESTS)),
        *_any_of([number for number in numbers if number is not None]),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def install(code: bytes) -> None:
    """Install a filter in this process for good. Set no_new_privs first. Errors: OSError."""
    buffer = ctypes.create_string_buffer(code, len(code))
    head = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    kernel.prctl(kernel.PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.create_string_buffer(head, len(head)))


def this_machine() -> str:
    """Return the architecture of this kernel, as `uname -m` prints it."""
    return os.uname().machine


def _load(offset: int) -> list[Instruction]:
    return [(LOAD, 0, 0, offset)]


def _when(number: int | None, then: Sequence[Instruction]) -> list[Instruction]:
    """Return instructions for one call, which have to end in a RETURN; none if the machine lacks the call."""
    return [] if number is None else [(JUMP_IF_EQUAL, 0, len(then), number), *then]


def _threads_only() -> list[Instruction]:
    """Allow clone for a thread; refuse a new process or namespace."""
    return [
        *_load(ARGUMENTS_OFFSET),
        (AND, 0, 0, CLONE_THREAD | NEW_NAMESPACES),
        (JUMP_IF_EQUAL, 0, 1, CLONE_THREAD),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
    ]


def _no_truncated_reading(argument: int) -> list[Instruction]:
    """Allow open, but not O_TRUNC without the right to write, which Landlock checks only since version 3."""
    refuse = (RETURN, 0, 0, ERRNO | errno.EPERM)
    return [
        *_load(ARGUMENTS_OFFSET + 8 * argument),
        (AND, 0, 0, os.O_TRUNC | os.O_ACCMODE),
        *_when(os.O_TRUNC | os.O_RDONLY, [refuse]),
        *_when(os.O_TRUNC | os.O_ACCMODE, [refuse]),  # access mode 3, neither reading nor writing
        (RETURN, 0, 0, ALLOW),
    ]


def _own_limits() -> list[Instruction]:
    """Allow prlimit on the process itself (0), except to change RLIMIT_CPU.

    At that limit the kernel sends SIGKILL, which the supervisor would take for a lack of memory.
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
    """Allow a pair of UNIX stream sockets; another address family could make the kernel load a module."""
    return [
        *_load(ARGUMENTS_OFFSET),
        (JUMP_IF_EQUAL, 1, 0, UNIX),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
        *_among(1, TYPE_BITS, [STREAM]),
    ]


def _among(argument: int, mask: int, values: Sequence[int]) -> list[Instruction]:
    """Allow the call if the low 32 bits of an argument, masked, are one of the values."""
    return [
        *_load(ARGUMENTS_OFFSET + 8 * argument),
        (AND, 0, 0, mask),
        *_any_of(values),
        (RETURN, 0, 0, ERRNO | errno.EPERM),
    ]


def _any_of(numbers: Sequence[int]) -> list[Instruction]:
    return [step for number in numbers for step in _when(number, [(RETURN, 0, 0, ALLOW)])]
