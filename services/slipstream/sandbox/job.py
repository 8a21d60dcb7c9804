"""Messages between the caller and a fork server: the limits of all programs, one run, and its result."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

OUTPUT_BYTES = 256 * 1024
SCRATCH_MIB = 16
THREADS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits that hold for every program of a sandbox."""

    output_bytes: int = OUTPUT_BYTES
    """Largest standard output, in bytes; the value that a call returns has the same limit."""
    scratch_mib: int = SCRATCH_MIB
    """Total size of the files in the scratch folder, in MiB."""
    threads: int = THREADS
    """Number of threads; their kernel memory is not counted by RLIMIT_AS, so they need a limit of their
    own."""
    packages: str = ""
    """Folder of the packages that programs may import besides the standard library; empty for none."""
    modules: tuple[str, ...] = ()
    """Modules of `packages` that the fork server imports at its start, so that a program need not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a program in a process of its own. It carries the inputs, and never the expected result."""

    code: str
    stdin: str = ""
    call: str | None = None
    """An expression to evaluate after the program has run; None runs the program as a script."""
    arguments: str | None = None
    """JSON list of the arguments with which the value of `call` is called; None returns the value of `call`
    itself."""
    earlier: tuple[str, ...] | None = None
    """Earlier cells of a notebook whose last cell is `code`; None if `code` is no cell. They run first, in
    the same names, and their output is dropped. The value of the run is then that of `notebook.play`."""
    seconds: float
    """Deadline in seconds of wall time after the code begins; time spent waiting for a core does not
    count."""
    memory_mib: int
    """Address space in MiB, including the interpreter; a program is one process, so this bounds its
    memory."""

    def to_json(self) -> dict[str, Any]:
        """Return the run as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run, as its supervisor saw it."""

    end: str
    """`exited`, `killed` (by a signal), `late`, or the limit that was exceeded: `output`, `disk` or
    `threads`."""
    status: int
    """The exit status, or the number of the signal."""
    stdout: str
    value: str | None
    """JSON of the value of the call. The program's process wrote it: do not trust it."""
    seconds: float
    """Duration in seconds of wall time; time spent waiting for a core does not count."""
    error: str = ""
    """Name of the exception that ended the program. The program's process wrote it: do not trust it."""
    doubt: str = ""
    """Why the machine, and not the program, may be at fault for a failure; empty in the usual case."""


def result_from_json(message: dict[str, Any]) -> RunResult:
    """Return a result from its JSON object. Errors: KeyError for a missing field."""
    return RunResult(**{field.name: message[field.name] for field in fields(RunResult)})


def bounds_to_json(bounds: Bounds) -> str:
    """Return the bounds as JSON text, for the command line of a server."""
    return compact(asdict(bounds))


def bounds_from_json(text: str) -> Bounds:
    """Return the bounds from their JSON text."""
    return Bounds(**json.loads(text))


def run_from_json(message: dict[str, Any]) -> Run:
    """Return a run from its JSON object."""
    return Run(**message)


def compact(value: Any) -> str:
    """Return a value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))
