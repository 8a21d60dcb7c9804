"""What gRPC's C core writes to stderr about refused connections, in the pod's own log lines.

A handshake that fails on a server never reaches Python: all that there is of it is a line which the core
writes to file descriptor 2. While `told_in_words` is active, that descriptor leads to a small process,

    pod (Python) ──────────────────────────────▶ stderr
    pod (native code) ─▶ this program ─line by line─▶ stderr

which says such a line as a warning with the reason in words, and passes every other one on as it is. It is a
process and not a thread, so that the last words of a pod that crashes are not lost with it.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from slipstream.rpc.security.reasons import reason_of
from slipstream.telemetry.logs import LEVELS, Level, Log

FAILED = re.compile(rb"ssl_transport_security\S*\] Handshake failed with error (?P<said>.*)")
MISNAMED = re.compile(rb"ssl_transport_security\S*\] No match found for server name: (?P<name>.*)")
PREAMBLE = b"absl::InitializeLog() is called"
DRAIN_SECONDS = 2.0


@contextmanager
def told_in_words(name: str, level: Level) -> Iterator[None]:
    """Inside, refused handshakes are warnings of the pod `name`. `sys.stderr` goes where it went."""
    command = [sys.executable, "-m", "slipstream.rpc.security.native_stderr", name, level]
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
    """Say a line about a refused connection in words; False for a line that is to be passed on."""
    reason = _reason(line)
    if reason is not None:
        log.warning("connection refused", reason=reason)
    return reason is not None or PREAMBLE in line


def _reason(line: bytes) -> str | None:
    if failed := FAILED.search(line):
        return reason_of(failed["said"].decode(errors="replace"))
    if misnamed := MISNAMED.search(line):
        name = misnamed["name"].decode(errors="replace").strip()
        return f"it calls us {name}, which is not a name of our certificate"
    return None


def main(arguments: Sequence[str]) -> None:
    """Read lines from stdin until nobody can write any more."""
    name, level = arguments
    log = Log(pod=name, level=next(known for known in LEVELS if known == level))
    for line in sys.stdin.buffer:
        if not translate(line, log):
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()


def _wait(reader: "subprocess.Popen[bytes]") -> None:
    """A process that native code has left behind may hold the pipe open: then it is read on without us."""
    try:
        reader.wait(DRAIN_SECONDS)
    except subprocess.TimeoutExpired:
        reader.returncode = 0  # ours to leave: it ends with the last writer


if __name__ == "__main__":
    main(sys.argv[1:])
