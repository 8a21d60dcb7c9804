"""Groups of three processes, over gloo or NCCL on one GPU: formed, lost in each phase, formed again.

NCCL takes processes with different NCCL_HOSTID for those of different machines, so that one card is enough.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from slipstream.telemetry.logs import Log
from slipstream.weights.group import RendezvousStore

PROGRAM = Path(__file__).with_name("group_member.py")
SERVICES = Path(__file__).parents[2] / "services"
TIMEOUT = 5.0
WATCHDOG_SECONDS = 75.0
"""torch's watchdog ends a process within a minute and some seconds after a broken collective."""
ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


class Process:
    """One member."""

    def __init__(self, name: str, device: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), device],
            env={
                **os.environ,
                "PYTHONPATH": str(SERVICES),
                "NCCL_HOSTID": name,
                "NCCL_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._waiting = b""

    def tell(self, **command: Any) -> None:
        """Send a command and return at once; `answer` waits for the reply."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")

    def answer(self, seconds: float = 60) -> dict[str, Any]:
        """Return the next line; the test fails when none comes in time."""
        assert self._process.stdout is not None
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._waiting:
                assert ready.select(until - time.monotonic()), f"{self.name} said nothing in {seconds:g} s"
                part = os.read(self._process.stdout.fileno(), 65536)
                assert part, f"{self.name} ended with {self._process.wait()}"
                self._waiting += part
        line, _, self._waiting = self._waiting.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Fleet:
    """The rendezvous store, and the processes of the members."""

    def __init__(self, device: str) -> None:
        self.store = RendezvousStore("127.0.0.1", 0, timeout_seconds=TIMEOUT, log=Log(pod="test"))
        self.members = [Process(f"host-{number}", device) for number in range(3)]
        self._epoch = 0

    def form(self, members: Sequence[Process], *, absent: int = 0) -> None:
        """Tell the members to form the next epoch's group, with this number of missing members."""
        self.store.server.end_epoch()
        self._epoch += 1
        for rank, member in enumerate(members):
            member.tell(
                form={
                    "epoch": self._epoch,
                    "rank": rank,
                    "world_size": len(members) + absent,
                    "store_host": self.store.host,
                    "store_port": self.store.port,
                    "timeout_seconds": TIMEOUT,
                    "nonce": self.store.server.issue_nonce(connections=1).hex(),
                }
            )

    def formed(self, members: Sequence[Process]) -> None:
        self.form(members)
        assert [member.answer() for member in members] == [{"formed": True}] * len(members)

    def broadcast(self, members: Sequence[Process], version: int) -> None:
        """Broadcast a version, and check that it arrives byte for byte."""
        for rank, member in enumerate(members):
            member.tell(**{"receive" if rank else "send": version})
        answers = [member.answer() for member in members]
        assert "digest" in answers[0], answers
        assert answers == [answers[0]] * len(members)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=ON_GPU)])
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    fleet = Fleet(request.param)
    with ExitStack() as ending:
        ending.callback(fleet.store.server.close)
        for member in fleet.members:
            ending.callback(member.end)
        yield fleet


def go_on_without_the_third(fleet: Fleet) -> dict[str, Any]:
    """Check that the broadcast fails, then succeeds without the third member; return the second's answer."""
    learner, one, _ = fleet.members
    assert "broadcast" in errors_of([learner], within=4 * TIMEOUT)[0]
    learner.tell(leave=True)
    outcome = one.answer(4 * TIMEOUT)
    assert learner.answer() == {"left": True}
    fleet.formed([learner, one])
    fleet.broadcast([learner, one], 2)
    return outcome


def errors_of(members: Sequence[Process], *, within: float) -> list[str]:
    """Return the error of each member, which must come in time."""
    until = time.monotonic() + within
    return [member.answer(until - time.monotonic())["error"] for member in members]


def test_versions_arrive_byte_for_byte_in_one_epoch_after_another(fleet: Fleet) -> None:
    for members in (fleet.members, fleet.members[:2], fleet.members):
        fleet.formed(members)
        for version in (1, 2, 3):
            fleet.broadcast(members, version)


def test_a_missing_member_makes_the_forming_fail_in_time(fleet: Fleet) -> None:
    learner, one, two = fleet.members
    fleet.form([learner, one], absent=1)
    assert all("could not form the group" in error for error in errors_of([learner, one], within=4 * TIMEOUT))
    fleet.formed([learner, two])
    fleet.broadcast([learner, two], 4)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_member_that_dies_before_the_broadcast_ends_it_for_the_others(
    fleet: Fleet, number: signal.Signals
) -> None:
    learner, one, two = fleet.members
    fleet.formed(fleet.members)
    two.signal(number)
    learner.tell(send=1)
    one.tell(receive=1)
    go_on_without_the_third(fleet)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_member_that_dies_during_a_broadcast_ends_it_for_the_others(
    fleet: Fleet, number: signal.Signals
) -> None:
    learner, one, two = fleet.members
    fleet.formed(fleet.members)
    learner.tell(send=1)
    one.tell(receive=1)
    two.tell(receive=1, halt_after=2)
    assert two.answer() == {"halted": True}
    two.signal(number)
    assert "error" in go_on_without_the_third(fleet)


def test_a_learner_that_dies_during_a_broadcast_ends_it_for_the_workers(fleet: Fleet) -> None:
    learner, one, two = fleet.members
    fleet.formed([one, learner, two])  # whoever sends is rank 0
    learner.tell(receive=1)
    two.tell(receive=1)
    one.signal(signal.SIGKILL)
    errors_of([learner, two], within=4 * TIMEOUT)
    fleet.formed([learner, two])
    fleet.broadcast([learner, two], 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_no_watchdog_ends_a_process_after_a_broken_broadcast() -> None:
    fleet = Fleet("cuda")
    learner, one, two = fleet.members
    try:
        fleet.formed(fleet.members)
        two.signal(signal.SIGKILL)
        learner.tell(send=1)
        one.tell(receive=1)
        errors_of([learner, one], within=4 * TIMEOUT)
        time.sleep(WATCHDOG_SECONDS)
        assert learner.alive
        assert one.alive
        fleet.formed([learner, one])
        fleet.broadcast([learner, one], 2)
    finally:
        for member in fleet.members:
            member.end()
        fleet.store.server.close()


@pytest.mark.parametrize("seconds", [0, 0.001, 0.002, 0.005, 0.01, 0.02])
def test_a_process_whose_epoch_ends_at_its_exit_is_not_aborted(seconds: float) -> None:
    command = [sys.executable, str(Path(__file__).with_name("exiting_member.py")), str(seconds)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
