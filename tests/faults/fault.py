"""The current fault of a connection path, in a small file that a test writes and a proxy reads."""

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """The fault of the traffic of a path. The default is no fault."""

    delay_seconds: float = 0.0
    """Latency in each direction; bytes keep their order, and bandwidth is not limited."""
    partition: bool = False
    """No byte is forwarded in either direction, on old and new connections; none is closed."""
    half_open_after_bytes: int = 0
    """A connection that has carried so many bytes of answers since the fault began carries nothing more, in
    either direction, and is not closed; 0 is never."""
    half_open_times: int = 0
    """The number of connections with this fault."""
    cuts: int = 0
    """Counter: the connections that are open when it grows are reset."""
    cut_answers: float = 0.0
    """Share of responses, as bursts of TCP, at which their connection is reset."""
    swallowed_answers: float = 0.0
    """Share of responses at which their connection becomes half-open: it forwards only requests."""
    lost_answers: float = 0.0
    """Share of calls whose request is delivered and whose response is lost; needs the gRPC proxy."""
    lost_silently: bool = True
    """True: a lost response never arrives. False: the call fails with UNAVAILABLE after the server's work."""


NO_FAULT = Fault()


class FaultFile:
    """The file with the fault of a path."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = -1
        self._fault = NO_FAULT

    def write(self, fault: Fault) -> None:
        """Set the fault."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(asdict(fault)))
        os.replace(new, self._path)

    def read(self) -> Fault:
        """Return the current fault."""
        try:
            stamp = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return NO_FAULT
        if stamp != self._stamp:
            self._stamp = stamp
            self._fault = Fault(**json.loads(self._path.read_text()))
        return self._fault

    def cut(self) -> None:
        """Reset every open connection once."""
        fault = self.read()
        self.write(replace(fault, cuts=fault.cuts + 1))
