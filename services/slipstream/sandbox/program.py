"""The program's process: it is confined, then runs the code and writes the value of a call into a pipe.

From the moment the code begins, nothing that this process writes is trusted. The code knows its own inputs
and can write into its own pipes, and can reach nothing else. So the only thing that it can forge is its own
result.
"""

import atexit
import json
import linecache
import os
import random
import resource
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from io import TextIOWrapper
from types import ModuleType
from typing import NoReturn

from slipstream.sandbox import job, notebook, values
from slipstream.sandbox.confine import Confinement, confine

CONFINED = b"\x06"
"""The first byte in the pipe of the value: the process is confined, and the code begins."""
UNCONFINED_STATUS = 70
FIRST_OWN_DESCRIPTOR = 4
MOST_LIKELY_VICTIM = "1000"
PROGRAM_FILE = "program.py"
VALUE_DESCRIPTOR = 3


def become(
    run: job.Run, confinement: Confinement, folder: str, *, descriptors: Mapping[int, int]
) -> NoReturn:
    """Turn this process into the program.

    `descriptors`: 0 to 3 → standard input, output, error, and the pipe of the value.
    """
    try:
        atexit._clear()  # the functions that the server registered
        _arrange(descriptors)
        _raise_oom_score()
        confine(confinement, folder, seconds=run.seconds, memory_mib=run.memory_mib)
        os.write(VALUE_DESCRIPTOR, CONFINED)
    except BaseException as error:  # nothing may return from here into the code of the server
        os.write(VALUE_DESCRIPTOR, f"{type(error).__name__}: {error}".encode())
        os._exit(UNCONFINED_STATUS)
    _finish(_status(run))


def _raise_oom_score() -> None:
    """Let the kernel kill the program, and not its supervisor or the caller, when the cgroup has no memory
    left."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(MOST_LIKELY_VICTIM)


def _arrange(descriptors: Mapping[int, int]) -> None:
    """Set up the standard streams and the pipe, and close all other descriptors of the server."""
    high = {target: os.dup(source) for target, source in descriptors.items()}
    for target, source in high.items():
        os.dup2(source, target, inheritable=True)
    os.closerange(FIRST_OWN_DESCRIPTOR, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    sys.stdin = sys.__stdin__ = _stream(0, "r")  # type: ignore[misc, assignment, unused-ignore]
    sys.stdout = sys.__stdout__ = _stream(1, "w")  # type: ignore[misc, assignment, unused-ignore]
    sys.stderr = sys.__stderr__ = _stream(2, "w")  # type: ignore[misc, assignment, unused-ignore]


def _stream(descriptor: int, mode: str) -> TextIOWrapper:
    """Open a stream that leaves its descriptor open when closed: programs may use the descriptor directly."""
    stream = open(descriptor, mode, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    assert isinstance(stream, TextIOWrapper)
    return stream


def _status(run: job.Run) -> int:
    try:
        _execute(run)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:  # the program may raise anything
        with suppress(BaseException):  # a class of the program may raise in its own repr
            _send(type(error).__name__.encode())
            traceback.print_exc()
        return 1
    return 0


def _execute(run: job.Run) -> None:
    random.seed(0)  # a run is repeatable
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed(0)
    sys.argv = [PROGRAM_FILE]
    module = ModuleType("__main__" if run.call is None else "program")
    sys.modules[module.__name__] = module  # dataclasses and pickle look up the program's classes here
    module.__file__ = PROGRAM_FILE
    if run.earlier is not None:
        _send(job.compact(notebook.play(run.earlier, run.code, module.__dict__)).encode())
        return
    lines = run.code.splitlines(keepends=True)
    linecache.cache[PROGRAM_FILE] = (len(run.code), None, lines, PROGRAM_FILE)  # for tracebacks and `inspect`
    names = module.__dict__
    exec(compile(run.code, PROGRAM_FILE, "exec", dont_inherit=True), names)
    if run.call is None:
        return
    value = eval(compile(run.call, "call", "eval", dont_inherit=True), names)
    if run.arguments is not None:
        value = value(*json.loads(run.arguments))
    _send(job.compact(values.to_plain(value)).encode())


def _send(data: bytes) -> None:
    while data:
        data = data[os.write(VALUE_DESCRIPTOR, data) :]


def _finish(status: int) -> NoReturn:
    """Exit as the interpreter does: join threads, run exit functions, flush.

    Skip the slow clean-up of objects.
    """
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.__stdout__):
            if stream is not None and not stream.closed:
                stream.flush()
    except BaseException:  # the exit functions are the program's, and may raise anything
        os._exit(1)
    os._exit(status & 0xFF)
