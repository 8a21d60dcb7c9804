"""One container: a process in namespaces of its own, its log, signals to it and commands beside it."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from chart.kubelet.network import DIE_WITH_US
from chart.kubelet.rootfs import Process, as_user, script

NAMESPACES = ["--mount", "--uts", "--ipc", "--pid"]
FIRST_PROCESS = ["bash", "-c", 'bash "$1" & wait $!', "container"]
"""Its child is the first process of the new PID namespace; it ends as that does, 128 + N after signal N."""
START_SECONDS = 30.0
BEFORE = (b"", b"bash", b"chroot", b"/usr/bin/setpriv", b"/usr/bin/env")
"""What the first process is called while the container is being made."""


class Container:
    """A running or ended container."""

    def __init__(self, process: Process, *, pod: int, directory: Path, log: Path) -> None:
        """`pod` holds the network namespace; `directory` is for this start alone."""
        self.process = process
        self._pod = pod
        root = directory / "root"
        root.mkdir(parents=True)
        start = directory / "start.sh"
        start.write_text(script(process, root), encoding="utf-8")
        words = [*DIE_WITH_US, "nsenter", f"--net=/proc/{pod}/ns/net", "unshare", *NAMESPACES]
        with log.open("ab") as output:
            self._outer = subprocess.Popen(
                [*words, *FIRST_PROCESS, str(start)], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    @property
    def exit_status(self) -> int | None:
        """None while it runs; 128 + N after signal N."""
        return self._outer.poll()

    def signal(self, number: signal.Signals) -> None:
        """To the container's first process, once it is there; what made the container is not meant."""
        inner = self._started()
        if inner is not None and self.exit_status is None:
            os.kill(inner, number)

    def wait(self, seconds: float) -> int | None:
        """The exit status, or None when it still runs after that time."""
        try:
            return self._outer.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """The end, at once, of everything in it."""
        if self.exit_status is None:
            self.signal(signal.SIGKILL)
            if self.wait(START_SECONDS) is None:
                self._outer.kill()
                self._outer.wait()

    def run(self, words: Sequence[str], *, seconds: float) -> str | None:
        """A command beside the container's process: None after exit 0, else what went wrong."""
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
        """The container's first process, once it has become what it shall be."""
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
