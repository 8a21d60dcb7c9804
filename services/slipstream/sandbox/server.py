"""The fork server: `python -s -P -S -B .../server.py SOURCE_ROOT SOCKET HOME BOUNDS OUTER`.

    namespaces ─▶ trials ─▶ ready ─▶ a run arrives ─▶ fork a supervisor ─▶ it ends ─┐
                                           ▲                                        │
                                           └────────────────────────────────────────┘

BOUNDS is JSON. OUTER is `bubblewrap` if bubblewrap has made the namespaces, else `none`.

The server has an empty environment, and only the packages that programs may import. It imports at its start
the modules that programs use. It never reads a run itself, so the memory from which a program is forked has
never held another program.
"""

import gc
import os
import select
import site
import socket
import sys
from collections.abc import Sequence

BUBBLEWRAP, WITHOUT_BUBBLEWRAP = "bubblewrap", "none"
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""NumPy must start no threads here: a fork copies only the thread that calls it."""
USED_BY_PROGRAMS = [
    "abc",
    "array",
    "bisect",
    "cmath",
    "collections",
    "collections.abc",
    "contextlib",
    "copy",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "io",
    "itertools",
    "json",
    "math",
    "operator",
    "queue",
    "random",
    "re",
    "statistics",
    "string",
    "struct",
    "textwrap",
    "time",
    "types",
    "typing",
    "unicodedata",
]


def main(argv: Sequence[str]) -> None:
    """Execute the programs that the parent process sends, one at a time, until it closes the socket."""
    from slipstream.processes.frames import to_frame
    from slipstream.processes.lifetime.parent_death import die_with_parent
    from slipstream.sandbox.job import bounds_from_json
    from slipstream.sandbox.namespaces import PROCESSES, enter
    from slipstream.sandbox.trial import find_confinement

    descriptor, home, bounds = int(argv[0]), argv[1], bounds_from_json(argv[2])
    os.environ.clear()
    die_with_parent()
    missing = {} if argv[3] == BUBBLEWRAP else enter(home, scratch_mib=bounds.scratch_mib)
    if PROCESSES not in missing and os.getpid() != 1:
        _continue_as_first_process()
    for name in USED_BY_PROGRAMS:
        __import__(name)
    unusable = _import_packages(bounds)
    site.setquit()  # -S skips the site module, which defines `exit` and `quit`
    sys.path.pop(0)  # SOURCE_ROOT, which programs may not import
    with socket.socket(fileno=descriptor) as connection:
        if unusable:
            connection.sendall(to_frame({"unusable": unusable}))
            return
        confinement, report = find_confinement(home, missing, bounds)
        connection.sendall(to_frame({"active": list(report.active), "missing": dict(report.missing)}))
        gc.collect()
        gc.freeze()
        gc.disable()
        while _wait_for_run(connection):
            _fork_supervisor(connection, confinement, home)


def _import_packages(bounds: "Bounds") -> str:
    """Import the packages that programs may import. Returns why one cannot be imported, or ""."""
    if not bounds.packages:
        return ""
    sys.path.append(bounds.packages)
    os.environ.update(ONE_THREAD)
    for name in bounds.modules:
        try:
            __import__(name)
            if name == "numpy":
                __import__("numpy.random")
        except Exception as error:  # a package may raise anything while it is imported
            return f"{name} cannot be imported: {type(error).__name__}: {error}"
    os.environ.clear()
    return ""


def _continue_as_first_process() -> None:
    """Fork, and go on in the child, which is process 1 of the namespace: when it ends, the kernel kills the
    others."""
    from slipstream.processes.lifetime.parent_death import die_with_parent

    child = os.fork()
    if child:
        os.closerange(3, 256)
        os.waitpid(child, 0)
        os._exit(0)
    die_with_parent()


def _wait_for_run(connection: socket.socket) -> bool:
    """Wait for a run. Returns False when the parent has closed the socket."""
    select.select([connection], [], [])
    return bool(connection.recv(1, socket.MSG_PEEK))


def _fork_supervisor(connection: socket.socket, confinement: "Confinement", home: str) -> None:
    """Execute one run in a supervisor. If it fails, exit: the closed socket tells the parent."""
    from slipstream.processes.lifetime.parent_death import die_with_parent
    from slipstream.sandbox.supervisor import serve_one

    supervisor = os.fork()
    if supervisor == 0:
        status = 1
        try:
            die_with_parent()
            serve_one(connection, confinement, home)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(supervisor, 0)
    if status:
        sys.exit(1)


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    from slipstream.sandbox.confine import Confinement
    from slipstream.sandbox.job import Bounds

    main(sys.argv[2:])
