"""The cells of a notebook in the process of a program: the earlier ones again without output, then the last.

A process ends with its run, so the state that a cell needs is made again by the cells before it. They find
the same surroundings: an empty scratch folder, no network, the same seed of `random` and of hashes. What
still may differ is what the clock, the system's random numbers, threads and addresses of objects give. So
the digest of each cell's output is returned, and the caller can compare it with that of the first time.
"""

import ast
import hashlib
import io
import linecache
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

MAX_CHARACTERS = 65_536
"""Most characters of all cells of a notebook."""
DIGEST_BYTES = 8
STDOUT, STDERR = 1, 2


def play(earlier: Sequence[str], code: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run cells in the namespace `names`, of which only the last one shows its output.

    The value of a last expression is printed, as by Python's prompt, and so is the traceback of an exception,
    which ends its cell alone. Standard error goes to the standard output.

    Returns `digests`, one for each cell, of what it wrote to `sys.stdout` and `sys.stderr`, and `raised`: the
    name of the exception of the last cell, or "".
    """
    shown = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)  # /dev/null
    digests = [_run(cell, f"cell_{number}.py", names)[0] for number, cell in enumerate(earlier, 1)]
    os.dup2(shown, STDOUT)
    os.dup2(shown, STDERR)
    os.close(shown)
    digest, raised = _run(code, f"cell_{len(earlier) + 1}.py", names)
    return {"digests": [*digests, digest], "raised": raised}


class _Output(io.RawIOBase):
    """Standard output, with a digest of what was written."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return STDOUT

    def write(self, data: Any) -> int:
        written = os.write(STDOUT, data)
        self.digest.update(bytes(data)[:written])
        return written


def _run(code: str, name: str, names: dict[str, Any]) -> tuple[str, str]:
    """Return the digest of a cell's output, and the name of its exception, or ""."""
    output = _Output()
    stream = io.TextIOWrapper(io.BufferedWriter(output), "utf-8", errors="replace", line_buffering=True)
    sys.stdout = sys.stderr = stream
    raised = ""
    try:
        _execute(code, name, names)
    except SystemExit:
        pass
    except BaseException as error:
        raised = type(error).__name__
        with suppress(BaseException):  # a class of the program may raise in its own repr
            _print(error)
    with suppress(BaseException):  # the program may have closed the stream
        stream.flush()
    return output.digest.hexdigest(), raised


def _execute(code: str, name: str, names: dict[str, Any]) -> None:
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)  # for tracebacks
    tree = compile(code, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec", dont_inherit=True), names)
    if last is not None:
        exec(compile(ast.Interactive([last]), name, "single", dont_inherit=True), names)


def _print(error: BaseException) -> None:
    """Print a traceback without the frames of this module."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)
