"""The walls around a program, by name, and which of them stand on this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

INNER: Mapping[str, str] = {
    "rlimits": "bounds of memory, time of a core, file size, open files; no core dump",
    "seccomp": "a list of allowed system calls: no sockets, processes, signals to others, tracing",
    "landlock": "reads the interpreter's library, writes its scratch folder, nothing else",
    "network_namespace": "a network of its own that is empty",
    "pid_namespace": "sees no process but its server's",
    "scratch_disk": "a disk in memory of its own, with a bound: no program fills another's",
    "user": "a user without privileges or capabilities",
}
"""What a server builds around each program."""
OUTER: Mapping[str, str] = {
    "bubblewrap": "the server is in a view of the machine that holds its interpreter and nothing else",
    "cgroup": "the whole pod's memory is bounded by its cgroup",
    "gvisor": "gVisor is the kernel of the whole pod",
}
"""What stands around the server."""
LAYERS: Mapping[str, str] = {**INNER, **OUTER}
"""Every layer, and what it is."""


class TooFewLayers(ValueError):
    """This machine cannot give the isolation that the configuration demands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Invariant: every layer is either active, as a trial has shown, or missing with the reason."""

    active: Sequence[str]
    missing: Mapping[str, str] = field(default_factory=dict)

    def within(self, missing: Mapping[str, str]) -> "Report":
        """Of a server's inner layers: that of all, with the outer ones that are missing."""
        outer = [name for name in OUTER if name not in missing]
        return Report(active=[*self.active, *outer], missing={**self.missing, **missing})

    def demand(self, required: Sequence[str]) -> None:
        """Errors: TooFewLayers when one of the required layers is missing."""
        lacking = [f"{name} ({self.missing[name]})" for name in required if name not in self.active]
        if lacking:
            raise TooFewLayers(
                f"verifier.isolation.require: not on this machine: {'; '.join(lacking)}; run code on one "
                "that has them, or demand less (`slipstream doctor` lists what there is)"
            )
