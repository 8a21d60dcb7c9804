"""Outlives a launcher that was killed, and ends what it left.

    python -m slipstream.cli.launch.watchdog TOKEN

The launcher holds the other end of standard input and writes the process id of each pod that it starts.
When the launcher dies, by whatever signal, the pipe closes; then everything with the run's marks is killed.
"""

import os
import signal
import subprocess
import sys

from slipstream.cli.launch.orphans import sweep

DISMISSED = "done"


class Watchdog:
    """The launcher's end of the pipe."""

    def __init__(self, token: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "slipstream.cli.launch.watchdog", token],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        self.pid = self._process.pid

    def watch(self, pid: int) -> None:
        """Remember the session of a pod."""
        self._tell(str(pid))

    def dismiss(self) -> None:
        """Nothing is left to watch."""
        self._tell(DISMISSED)
        self._process.kill()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return


def main(token: str) -> None:
    """Wait for the launcher's end; sweep unless it said that it is done."""
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
