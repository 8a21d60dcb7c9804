"""The layers around a fork server: bubblewrap, which is started here, and two of the pod, which are
detected."""

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
"""The suffix of its kernel release since 2026, and the build date that every release of gVisor reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """The outer layers. Invariant: `bubblewrap` is a key of `missing` exactly when the field is None."""

    bubblewrap: Bubblewrap | None
    missing: Mapping[str, str]
    """Outer layer → why it is missing."""


async def find(use: Use) -> Outer:
    """Find the outer layers of this machine; bubblewrap is tried unless `use` is `off`."""
    missing = {"cgroup": cgroup_missing(cgroup.own()), "gvisor": gvisor_missing()}
    bubblewrap = None
    try:
        if use == "off":
            raise BubblewrapUnavailable("bubblewrap is off in the configuration")
        bubblewrap = await bubblewrap_trial.find()
    except (BubblewrapUnavailable, OSError) as error:
        missing["bubblewrap"] = str(error)
    return Outer(bubblewrap=bubblewrap, missing={name: why for name, why in missing.items() if why})


def cgroup_missing(own: Cgroups) -> str:
    """Return why no cgroup limits the memory of this process; "" when one does."""
    if own.memory_bytes() is not None:
        return ""
    return "no memory limit for this process in its cgroup; only the limit of each program holds"


def gvisor_missing(file: Path = KERNEL_VERSION) -> str:
    """Return why this is not the gVisor kernel; "" when it is."""
    try:
        version = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        version = ""
    is_gvisor = any(mark in version for mark in GVISOR_VERSIONS)
    return "" if is_gvisor else "the pod runs on the node's own kernel"
