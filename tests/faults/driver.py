"""A `slipstream run` with every pod behind proxies, and the checks after any fault."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from faults.fault import Fault, FaultFile
from system.driver import Run

EMULATED = ("rollout.engine=emulated", "rollout.emulated.median_seconds=0.1", "rollout.workers=2")
LAUNCH = Path(__file__).with_name("launch.py")
GROUPS_PER_STEP = 8


class FaultyRun(Run):
    """A run whose processes and connections can be disturbed.

    `seed` above 0 puts a proxy that can lose responses into each path, and seeds its choice.
    """

    def __init__(self, directory: Path, *arguments: str, steps: int, seed: int = 0) -> None:
        self.steps = steps
        self.faults = directory / "faults"
        program = (sys.executable, str(LAUNCH), str(self.faults), str(seed))
        super().__init__(directory, *EMULATED, *arguments, steps=steps, program=program)

    def path(self, client: str, server: str) -> FaultFile:
        """Return the fault file of the connections of a pod to another."""
        return FaultFile(self.faults / f"{client}-{server}.json")

    def disturb(
        self, fault: Fault, *, clients: tuple[str, ...] = ("learner", "actor-0", "rollout-0", "rollout-1")
    ) -> None:
        """Apply a fault to the connections between these pods and replay."""
        for client in clients:
            self.path(client, "replay").write(fault)

    def pid(self, name: str) -> int | None:
        """Return the process id of a pod, ready or not; `redis` is the server that replay has started."""
        if name == "redis":
            replay = self.pid("replay")
            return None if replay is None else child_of(replay, "redis-server", "valkey-server")
        try:
            return int((self.faults / f"{name}.pid").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def send(self, name: str, number: signal.Signals) -> int:
        """Send a signal to a pod; return its process id."""
        pid = self.pid(name)
        assert pid is not None, f"{name} has not been started:\n{self.said()}"
        os.kill(pid, number)
        return pid

    def trained(self) -> list[int]:
        """Return the dispatch indices of the groups on which the weights were trained, with repetitions.

        A step that a resumed learner repeats replaces the lost one.
        """
        steps = {row["step"]: row["dispatch_indices"] for row in self.rows("step")}
        return [index for _, indices in sorted(steps.items()) for index in indices]

    def assert_exactly_once(self) -> None:
        """Check that all steps were made once, the ledger is balanced, and no process is left."""
        summary = self.summary()
        trained = self.trained()
        assert summary["steps"] == self.steps, self.said()
        assert len(trained) == self.steps * GROUPS_PER_STEP
        assert len(set(trained)) == len(trained), f"trained twice: {_repeated(trained)}"
        assert summary["ledger"]["trained"] == len(trained)
        assert summary["ledger_residual"] == 0, summary["ledger"]
        assert summary["orphans"] == 0, self.said()


@contextmanager
def faulty(directory: Path, *arguments: str, steps: int, seed: int = 0) -> Iterator[FaultyRun]:
    """Start a run behind proxies, and stop it at the end of the context."""
    run = FaultyRun(directory, *arguments, steps=steps, seed=seed)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()  # its watchdog ends the pods
            run.process.wait()


def child_of(parent: int, *names: str) -> int | None:
    """Return the living child of a process with one of these names."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, after = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        state, ppid = after.split()[:2]
        if int(ppid) == parent and name in names and state not in "ZX":
            return int(stat.parent.name)
    return None


def wait_for_end(run: FaultyRun, *, seconds: float) -> int:
    """Wait for the end of a run; return its exit status. Errors: AssertionError with the output."""
    deadline = time.monotonic() + seconds
    while (status := run.process.poll()) is None:
        assert time.monotonic() < deadline, f"the run did not end within {seconds} s:\n{run.said()}"
        time.sleep(0.05)
    return status


def _repeated(values: list[Any]) -> list[Any]:
    return sorted({value for value in values if values.count(value) > 1})
