"""A network of this process's own, whose loopback carries so many gigabits per second."""

import ctypes
import os
import subprocess

CLONE_NEWNET = 0x40000000
BURST, LIMIT = "1mb", "32mb"
"""Bytes that travel at once, and bytes that may wait."""


class NoNetwork(Exception):
    """This machine does not let the process have a network of its own."""


def enter() -> None:
    """Move this thread, and the threads and processes that it starts later, to a network of their own.

    Errors: NoNetwork.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise NoNetwork(f"unshare: {os.strerror(ctypes.get_errno())}; run as root, or leave out --gbit")
    _execute("ip", "link", "set", "lo", "up")


def limit(gbit: float) -> None:
    """Have the loopback of this network carry `gbit` gigabits per second.

    Errors: NoNetwork.
    """
    bucket = ("tbf", "rate", f"{gbit:g}gbit", "burst", BURST, "limit", LIMIT)
    _execute("tc", "qdisc", "replace", "dev", "lo", "root", *bucket)


def _execute(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise NoNetwork(f"{command[0]} is missing; install iproute2, or leave out --gbit") from error
    except subprocess.CalledProcessError as error:
        raise NoNetwork(f"{' '.join(command)}: {error.stderr.strip()}") from error
