"""Translates the lines that gRPC's C core writes to stderr about failed handshakes into log lines of the pod.

Python does not learn of a handshake that fails on a server: the C core only writes a line to file descriptor
2. While `translating_stderr` is active, that descriptor leads to a small process:

    pod (Python) ─────────────────────────────────▶ stderr
    pod (native code) ─▶ this program ─ line by line ─▶ stderr

The program writes a warning with the reason for such a line, and passes every other line on unchanged. It is
a process and not a thread, so that the last lines of a pod that crashes are not lost with it.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from slipstream.rpc.security.failures import failure_of
from slipstream.telemetry.logs import LEVELS, Level, Log

FAILED = re.compile(rb"ssl_transport_security\S*\] Handshake failed with error (?P<message>.*)")
MISNAMED = re.compile(rb"ssl_transport_security\S*\] No match found for server name: (?P<name>.*)")
PREAMBLE = b"absl::InitializeLog() is called"
DRAIN_SECONDS = 2.0


@contextmanager
def translating_stderr(name: str, level: Level) -> Iterator[None]:
    """Log refused handshakes as warnings of the pod `name`. `sys.stderr` keeps its destination."""
    command = [sys.executable, "-m", "slipstream.rpc.security.handshake_log", name, level]
    python, direct = sys.stderr, os.dup(2)
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    assert reader.stdin is not None
    python.flush()
    sys.stderr = os.fdopen(os.dup(direct), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    os.dup2(reader.stdin.fileno(), 2)
    reader.stdin.close()
    try:
        yield
    finally:
        sys.stderr.close()
        sys.stderr = python
        os.dup2(direct, 2)
        os.close(direct)
        _wait(reader)


def translate(line: bytes, log: Log) -> bool:
    """Log a line about a refused connection; return False for a line that is to be passed on."""
    reason = _reason(line)
    if reason is not None:
        log.warning("connection refused", reason=reason)
    return reason is not None or PREAMBLE in line


def _reason(line: bytes) -> str | None:
    if failed := FAILED.search(line):
        return str(failure_of(failed["message"].decode(errors="replace")))
    if misnamed := MISNAMED.search(line):
        name = misnamed["name"].decode(errors="replace").strip()
        return f"it calls us {name}, which is not a name of our certificate"
    return None


def main(arguments: Sequence[str]) -> None:
    """Read lines from stdin until all writers have closed it."""
    name, level = arguments
    log = Log(pod=name, level=next(each for each in LEVELS if each == level))
    for line in sys.stdin.buffer:
        if not translate(line, log):
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()


def _wait(reader: "subprocess.Popen[bytes]") -> None:
    """Wait for the reader, unless a process that native code has started still holds the pipe open."""
    try:
        reader.wait(DRAIN_SECONDS)
    except subprocess.TimeoutExpired:
        reader.returncode = 0  # no ResourceWarning: the reader ends by itself, with the last writer


if __name__ == "__main__":
    main(sys.argv[1:])
