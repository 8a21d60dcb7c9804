"""Namespaces of a fork server: a network without interfaces, and processes that see only each other."""

import os
from pathlib import Path

from slipstream.verifier.sandbox.kernel import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    unshare,
)

NETWORK, PROCESSES = "network_namespace", "pid_namespace"


def enter() -> dict[str, str]:
    """Enter what this machine allows; returns why a layer is missing, by name.

    The process identifiers are those of the children from now on: the next child is the first process.
    """
    try:
        _enter_user()
    except OSError as error:
        return dict.fromkeys((NETWORK, PROCESSES), f"no new user namespace: {error.strerror}")
    missing = {}
    for name, flags in ((NETWORK, CLONE_NEWNET | CLONE_NEWIPC), (PROCESSES, CLONE_NEWPID)):
        try:
            unshare(flags)
        except OSError as error:
            missing[name] = f"unshare: {error.strerror}"
    return missing


def _enter_user() -> None:
    """For who is not root: a user namespace, in which the others are allowed."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        return
    unshare(CLONE_NEWUSER)
    own = Path("/proc/self")
    for file, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        (own / file).write_text(text, encoding="ascii")
