"""Kills the processes of a launcher that was killed itself.

    python -m slipstream.processes.lifetime.watchdog TOKEN

The launcher holds the other end of standard input and writes the process id of each pod that it starts.
When the launcher dies, by whatever signal, the pipe closes. The watchdog then kills all processes that carry
the marks of the run.
"""

import os
import signal
import subprocess
import sys

from slipstream.processes.lifetime.left_over import sweep

DISMISSED = "done"


class Watchdog:
    """The launcher's end of the pipe."""

    def __init__(self, token: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "slipstream.processes.lifetime.watchdog", token],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        self.pid = self._process.pid

    def watch(self, pid: int) -> None:
        """Add the session of a pod to the processes of the run."""
        self._write(str(pid))

    def dismiss(self) -> None:
        """End the watchdog: no process of the run is left."""
        self._write(DISMISSED)
        self._process.kill()
        self._process.wait()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return


def main(token: str) -> None:
    """Wait for the launcher's end; kill what it has left unless it has dismissed this watchdog."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sessions: set[int] = set()
    for line in sys.stdin:
        if line.strip() == DISMISSED:
            return
        sessions.add(int(line))
    sweep(token, sessions=sessions, ancestor=None, spare=(os.getpid(),), grace=0)


if __name__ == "__main__":
    main(sys.argv[1])
