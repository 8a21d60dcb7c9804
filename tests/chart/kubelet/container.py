"""A container: a process in its own namespaces, its log, signals to it, and commands inside it."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from chart.kubelet.network import DIE_WITH_PARENT
from chart.kubelet.rootfs import Process, as_user, script

NAMESPACES = ["--mount", "--uts", "--ipc", "--pid"]
FIRST_PROCESS = ["bash", "-c", 'bash "$1" & wait $!', "container"]
"""The parent of the first process in the new PID namespace; it has the same exit status."""
START_SECONDS = 30.0
BEFORE = (b"", b"bash", b"chroot", b"/usr/bin/setpriv", b"/usr/bin/env")
"""The command of the first process while the container is being set up."""


class Container:
    """A running or ended container."""

    def __init__(self, process: Process, *, pod: int, directory: Path, log: Path) -> None:
        """`pod` holds the network namespace; `directory` is used for this start only."""
        self.process = process
        self._pod = pod
        root = directory / "root"
        root.mkdir(parents=True)
        start = directory / "start.sh"
        start.write_text(script(process, root), encoding="utf-8")
        words = [*DIE_WITH_PARENT, "nsenter", f"--net=/proc/{pod}/ns/net", "unshare", *NAMESPACES]
        with log.open("ab") as output:
            self._outer = subprocess.Popen(
                [*words, *FIRST_PROCESS, str(start)], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    @property
    def exit_status(self) -> int | None:
        """Return None while the container runs; 128 + N after signal N."""
        return self._outer.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the container's first process, after it has started."""
        inner = self._started()
        if inner is not None and self.exit_status is None:
            os.kill(inner, number)

    def wait(self, seconds: float) -> int | None:
        """Wait, and return the exit status, or None if the container still runs after `seconds`."""
        try:
            return self._outer.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kill all processes of the container."""
        if self.exit_status is None:
            self.signal(signal.SIGKILL)
            if self.wait(START_SECONDS) is None:
                self._outer.kill()
                self._outer.wait()

    def run(self, words: Sequence[str], *, seconds: float) -> str | None:
        """Run a command inside the container; return None after exit 0, else the error."""
        inner = self._started()
        if inner is None:
            return "the container does not run"
        enter = ["nsenter", f"--target={inner}", "--mount", "--uts", "--ipc", "--net", "--pid", "--root"]
        words = [*enter, *as_user(replace(self.process, words=words))]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return f"no end within {seconds:g} s"
        return None if done.returncode == 0 else f"exit {done.returncode}: {done.stdout}{done.stderr}"

    def _started(self) -> int | None:
        """Wait until the container is set up, and return its first process."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.exit_status is None:
            inner = _only_child(self._outer.pid)
            if inner is not None and _command_line(inner).split(b"\0")[0] not in BEFORE:
                return inner
            time.sleep(0.01)
        return None


def _only_child(parent: int) -> int | None:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and _parent_of(entry) == parent:
            return int(entry.name)
    return None


def _parent_of(entry: Path) -> int | None:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def _command_line(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
