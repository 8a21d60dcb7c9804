"""The rendezvous between two machines, which are two network namespaces with one address each."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.chart,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"),
]
MACHINE = Path(__file__).with_name("machine.py")
FAMILIES = {"ipv4": ("10.231.7.1", "10.231.7.2", "24"), "ipv6": ("fd31:7::1", "fd31:7::2", "64")}
"""Addresses of learner and worker, of one family only, and the prefix length of their network."""
SUM = sum(range(1000))
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"


@dataclass(frozen=True, slots=True)
class Namespace:
    """One machine."""

    name: str

    def start(self, *command: str) -> "subprocess.Popen[str]":
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), OMP_NUM_THREADS="1")
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def reaches(self, host: str, port: str) -> bool:
        """Return whether this machine can connect to the address."""
        return self.start("-c", CONNECT, host, port).wait(10) == 0


@pytest.fixture(params=FAMILIES)
def addresses(request: pytest.FixtureRequest) -> tuple[str, str, str]:
    return FAMILIES[request.param]


@pytest.fixture
def machines(addresses: tuple[str, str, str]) -> Iterator[tuple[Namespace, Namespace]]:
    one, two = (Namespace(f"slipstream-{role}-{os.getpid()}") for role in ("learner", "worker"))
    with ExitStack() as undo:
        for machine in (one, two):
            _ip("netns", "add", machine.name)
            undo.callback(_ip, "netns", "delete", machine.name)
            _ip("-n", machine.name, "link", "set", "lo", "up")
        _ip("-n", one.name, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", two.name)
        *own, bits = addresses
        for machine, address in zip((one, two), own, strict=True):
            options = ["nodad"] if ":" in address else []
            _ip("-n", machine.name, "address", "add", f"{address}/{bits}", "dev", "eth0", *options)
            _ip("-n", machine.name, "link", "set", "eth0", "up")
        yield one, two


def test_a_worker_of_another_machine_gets_the_weights_and_cannot_reach_the_store(
    machines: tuple[Namespace, Namespace], addresses: tuple[str, str, str]
) -> None:
    learner_machine, there = machines
    address = addresses[0]
    with ExitStack() as ends:
        learner = ends.enter_context(learner_machine.start(str(MACHINE), "0", address))
        assert learner.stdout is not None
        port, nonce, store_port = learner.stdout.readline().split()
        assert there.reaches(address, port)
        assert not there.reaches(address, store_port)
        assert not learner_machine.reaches("127.0.0.1", port)
        worker = ends.enter_context(there.start(str(MACHINE), "1", address, port, nonce))
        assert worker.stdout is not None
        got = [int(member.stdout.readline()) for member in (learner, worker) if member.stdout]
        for member in (learner, worker):
            assert member.stdin is not None
            member.stdin.close()
        assert got == [SUM, SUM]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
