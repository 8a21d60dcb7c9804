"""Run programs of the policy in the verifier's sandbox, for the tool `python` of environments."""

import json
import re
import time
from dataclasses import dataclass
from typing import Literal

from slipstream.config import RunConfig, sources
from slipstream.rpc.errors import InvalidRequest, Unreachable
from slipstream.sandbox import job, notebook, server_process
from slipstream.sandbox.sandbox import Sandbox
from slipstream.telemetry.metrics import Metrics
from slipstream.verifier.admission import AdmissionQueue

End = Literal["finished", "raised", "exited", "late", "output", "disk", "threads"]
ENDS: tuple[End, ...] = ("finished", "raised", "exited", "late", "output", "disk", "threads")
DIGEST = re.compile(r"[0-9a-f]{1,64}")
OVERRUNS: dict[str, End] = {"late": "late", "output": "output", "disk": "disk", "threads": "threads"}
"""Ends of a run that exceeded a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """The largest limits that a caller may ask for."""

    seconds: float
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program to run: the last cell of a notebook, and the cells before it."""

    code: str
    earlier: tuple[str, ...] = ()
    seconds: float
    """Deadline of all cells together."""
    memory_mib: int
    group: str = ""
    """Groups get free servers of the sandbox in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """How a program ended, and what its last cell wrote."""

    output: str
    end: End
    digests: tuple[str, ...]
    """Digest of the output of each cell; empty unless the end is `finished` or `raised`."""
    seconds: float


def limits_of(config: RunConfig) -> ProgramLimits | None:
    """Return the largest limits of the tools `python` of a run; None if it has none."""
    tools = sources.python_tools_of(config)
    if not tools:
        return None
    return ProgramLimits(
        seconds=max(tool.seconds for tool in tools), memory_mib=max(tool.memory_mib for tool in tools)
    )


class Programs:
    """Runs programs, if an environment of the run has the tool `python`.

    Invariants: a program runs only behind the layers that the sandbox requires, within the limits of the
    configuration, and with a slot of the admission queue, where it counts as one answer. What the program
    does is its result; what the machine does is an error.
    """

    def __init__(
        self, sandbox: Sandbox, *, limits: ProgramLimits | None, queue: AdmissionQueue, metrics: Metrics
    ) -> None:
        """`limits`: None if the run has no tool `python`; then `run` refuses every program."""
        self._sandbox = sandbox
        self._limits = limits
        self._queue = queue
        self._metrics = metrics
        if limits is not None:
            sandbox.prepare(memory_mib=limits.memory_mib)
            for end in ENDS:  # a rate in Prometheus needs the 0 before the first
                metrics.count("programs_total", 0, end=end)

    async def run(self, program: Program) -> ProgramResult:
        """Run a program. Errors: InvalidRequest; Busy; Unreachable for a failure of the sandbox."""
        self._check(program)
        self._queue.admit(1)
        started = time.monotonic()
        try:
            ran = await self._sandbox.run(_run_of(program), group=program.group)
            result = _result(ran)
        except server_process.SandboxLost as error:
            raise Unreachable(f"RunProgram: {error}") from error
        finally:
            self._queue.release(1, seconds=time.monotonic() - started)
        self._metrics.count("programs_total", end=result.end)
        self._metrics.observe("program_seconds", time.monotonic() - started)
        return result

    def _check(self, program: Program) -> None:
        if self._limits is None:
            raise InvalidRequest("RunProgram: no environment of this verifier's run has the tool `python`")
        characters = sum(map(len, (program.code, *program.earlier)))
        if characters > notebook.MAX_CHARACTERS:
            raise InvalidRequest(
                f"RunProgram: {characters} characters of code; at most {notebook.MAX_CHARACTERS}"
            )
        if not 0 < program.seconds <= self._limits.seconds:
            raise InvalidRequest(
                f"RunProgram: a deadline of {program.seconds:g} s; the longest of the verifier's "
                f"configuration is {self._limits.seconds:g} s"
            )
        if not 0 < program.memory_mib <= self._limits.memory_mib:
            raise InvalidRequest(
                f"RunProgram: {program.memory_mib} MiB; the most of the verifier's configuration are "
                f"{self._limits.memory_mib} MiB"
            )


def _run_of(program: Program) -> job.Run:
    return job.Run(
        code=program.code,
        earlier=program.earlier,
        seconds=program.seconds,
        memory_mib=program.memory_mib,
    )


def _result(ran: job.RunResult) -> ProgramResult:
    """Return the result. Errors: SandboxLost if it may be the fault of this machine."""
    end, digests = _end(ran)
    if ran.doubt and end in ("raised", "exited"):
        raise server_process.SandboxLost(f"a program failed, perhaps by this machine's fault: {ran.doubt}")
    return ProgramResult(output=ran.stdout, end=end, digests=digests, seconds=ran.seconds)


def _end(ran: job.RunResult) -> tuple[End, tuple[str, ...]]:
    if ran.end in OVERRUNS:
        return OVERRUNS[ran.end], ()
    try:
        value = json.loads(ran.value or "null")
        digests, raised = value["digests"], value["raised"]
        if all(DIGEST.fullmatch(digest) for digest in digests):
            return ("raised" if raised else "finished"), tuple(digests)
    except (ValueError, TypeError, KeyError, RecursionError):  # the program ended early, or wrote the value
        pass
    return "exited", ()
