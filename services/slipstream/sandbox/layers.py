"""The isolation layers around a program, and the report of which ones are active on this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

INNER: Mapping[str, str] = {
    "rlimits": "limits on memory, CPU time, file size and open files; no core dump",
    "seccomp": "a list of allowed system calls: no sockets, no processes, no signals to others, no tracing",
    "landlock": "it reads the interpreter's library and writes its scratch folder, nothing else",
    "network_namespace": "a network namespace without interfaces",
    "pid_namespace": "it sees only the processes of its own server",
    "scratch_disk": "a size-limited tmpfs for each server, so that no program fills another's disk",
    "user": "an unprivileged user without capabilities",
}
"""Layers that a fork server sets up around each program."""
OUTER: Mapping[str, str] = {
    "bubblewrap": "the server's root file system holds its interpreter and nothing else",
    "cgroup": "a cgroup limits the memory of the whole pod",
    "gvisor": "the whole pod runs on the gVisor kernel",
}
"""Layers around the fork server."""
LAYERS: Mapping[str, str] = {**INNER, **OUTER}
"""Every layer by name, with its description."""


class TooFewLayers(ValueError):
    """This machine lacks a layer of isolation that the caller requires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The layers of one machine.

    Invariant: each is active, as a trial has shown, or missing with a reason.
    """

    active: Sequence[str]
    missing: Mapping[str, str] = field(default_factory=dict)

    def within(self, missing: Mapping[str, str]) -> "Report":
        """Return this report of the inner layers with the outer layers added.

        `missing`: outer layer → reason.
        """
        outer = [name for name in OUTER if name not in missing]
        return Report(active=[*self.active, *outer], missing={**self.missing, **missing})

    def demand(self, required: Sequence[str]) -> None:
        """Check that the required layers are active. Errors: TooFewLayers."""
        lacking = [f"{name} ({self.missing[name]})" for name in required if name not in self.active]
        if lacking:
            raise TooFewLayers(
                f"not on this machine: {'; '.join(lacking)}; run programs on a machine that has these "
                "layers, or require fewer of them (`slipstream doctor` lists the layers of a machine)"
            )
