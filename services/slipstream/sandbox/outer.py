"""The outer walls: bubblewrap around each server, and what holds for the whole pod and is only found."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slipstream.sandbox import bubblewrap_trial, cgroup
from slipstream.sandbox.bubblewrap import Bubblewrap
from slipstream.sandbox.bubblewrap_trial import BubblewrapUnavailable
from slipstream.sandbox.cgroup import Cgroups

Use = Literal["auto", "off"]

KERNEL_VERSION = Path("/proc/version")
GVISOR_VERSIONS = ("-gvisor ", "#1 SMP Sun Jan 10 15:06:54 PST 2016")
"""The suffix of its release since 2026, and the date of a build that every release of it claims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """Invariant: bubblewrap is among the missing exactly when there is none."""

    bubblewrap: Bubblewrap | None
    missing: Mapping[str, str]
    """Outer layer → why it is not there."""


async def find(use: Use) -> Outer:
    """What this machine has of the outer walls; bubblewrap is tried unless it is `off`."""
    missing = {"cgroup": cgroup_missing(cgroup.own()), "gvisor": gvisor_missing()}
    bubblewrap = None
    try:
        if use == "off":
            raise BubblewrapUnavailable("verifier.isolation.bubblewrap is off")
        bubblewrap = await bubblewrap_trial.find()
    except (BubblewrapUnavailable, OSError) as error:
        missing["bubblewrap"] = str(error)
    return Outer(bubblewrap=bubblewrap, missing={name: why for name, why in missing.items() if why})


def cgroup_missing(own: Cgroups) -> str:
    """Why the memory of this pod is not bounded, or nothing when it is."""
    if own.memory_bytes() is not None:
        return ""
    return "no memory limit for this process in its cgroup; the bound is one program's memory a server"


def gvisor_missing(file: Path = KERNEL_VERSION) -> str:
    """Why the kernel is not gVisor's, or nothing when it is."""
    try:
        version = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        version = ""
    found = any(mark in version for mark in GVISOR_VERSIONS)
    return "" if found else "the pod runs on the node's own kernel"
