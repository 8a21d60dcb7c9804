"""What a fork server is told: the bounds that hold for all programs, and one run of a program."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

OUTPUT_BYTES = 256 * 1024
SCRATCH_MIB = 16
THREADS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a program may use."""

    output_bytes: int = OUTPUT_BYTES
    """Longest standard output; what a call returns may be as long."""
    scratch_mib: int = SCRATCH_MIB
    """Files in its scratch folder, in MiB."""
    threads: int = THREADS
    """More of them than a program has use for fill the kernel's memory, which no bound of its own counts."""
    packages: str = ""
    """Folder of the packages that it may import beside Python's library; empty: none."""
    modules: tuple[str, ...] = ()
    """Those of them that a server imports before there is a program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a program in a process of its own. It carries inputs, never what is expected."""

    code: str
    stdin: str = ""
    call: str | None = None
    """An expression to evaluate once the program has run; None: run it as a script."""
    arguments: str | None = None
    """JSON list of arguments for what `call` evaluates to; None: `call` is the value."""
    seconds: float
    """Deadline by the clock from when the code begins; waiting for a core does not count."""
    memory_mib: int
    """Address space in MiB, the interpreter's included; it bounds all, since a program is one process."""

    def to_json(self) -> dict[str, Any]:
        """Run → JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What became of a run, as its warden saw it."""

    end: str
    """`exited`, `killed` (by a signal), `late`, `output`, `disk` or `threads` (more than it may)."""
    status: int
    """Exit status or number of the signal."""
    stdout: str
    value: str | None
    """JSON of what the call returned, as the program's process wrote it: not to be trusted."""
    seconds: float
    """How long it took, by the clock; waiting for a core does not count."""
    error: str = ""
    """Name of the exception that ended it, as the program's process wrote it: not to be trusted."""
    doubt: str = ""
    """Why the machine, and not the program, may be at fault for a wrong outcome; mostly nothing."""


def result_from_json(message: dict[str, Any]) -> RunResult:
    """JSON → RunResult. Errors: KeyError."""
    return RunResult(**{field.name: message[field.name] for field in fields(RunResult)})


def bounds_to_json(bounds: Bounds) -> str:
    """Bounds → JSON, as a word of a command."""
    return compact(asdict(bounds))


def bounds_from_json(text: str) -> Bounds:
    """JSON → Bounds."""
    return Bounds(**json.loads(text))


def run_from_json(message: dict[str, Any]) -> Run:
    """JSON → Run."""
    return Run(**message)


def compact(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))
