"""Machines of a test: network namespaces behind one bridge, each with a link that can be taken down.

A link that is down loses every packet in both directions, and no connection is told of it.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

PREFIX = f"198.18.{os.getpid() % 256}"
"""Of the addresses, in the range for benchmarks of networks (RFC 2544)."""
HOST = f"{PREFIX}.1"
"""Address of the test's own process on the bridge."""
BRIDGE = f"slip{os.getpid()}"


def can_make_machines() -> bool:
    """Return whether this process may make links and namespaces."""
    if shutil.which("ip") is None:
        return False
    made = subprocess.run(("ip", "netns", "add", BRIDGE), capture_output=True, check=False).returncode == 0
    return made and subprocess.run(("ip", "netns", "delete", BRIDGE), check=False).returncode == 0


@dataclass(frozen=True, slots=True)
class Machine:
    """One network namespace."""

    namespace: str
    link: str

    @property
    def prefix(self) -> Sequence[str]:
        """The words that start a command on this machine."""
        return ("ip", "netns", "exec", self.namespace)

    def cut(self) -> None:
        """Lose every packet from now on."""
        _ip("link", "set", self.link, "down")

    def reset(self) -> None:
        """Reset all connections: both ends get an error at once, and new connections are possible."""
        command = (*self.prefix, "ss", "--kill", "--tcp", "--no-header")
        killed = subprocess.run(command, check=True, capture_output=True, text=True)
        assert killed.stdout, f"this kernel resets no connections: {killed.stderr}"

    def mend(self) -> None:
        """Lose no more packets."""
        _ip("link", "set", self.link, "up")


@contextmanager
def machines(count: int) -> Iterator[Sequence[Machine]]:
    """Give machines that reach each other and HOST; they vanish with the context."""
    with ExitStack() as undo:
        _ip("link", "add", BRIDGE, "type", "bridge")
        undo.callback(_ip, "link", "delete", BRIDGE)
        _ip("address", "add", f"{HOST}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        made = []
        for number in range(count):
            machine = Machine(f"{BRIDGE}-{number}", f"s{number}p{os.getpid()}")
            _ip("netns", "add", machine.namespace)
            undo.callback(_ip, "netns", "delete", machine.namespace)
            peer = ("type", "veth", "peer", "name", "eth0", "netns", machine.namespace)
            _ip("link", "add", machine.link, "master", BRIDGE, *peer)
            undo.callback(
                _ip, "link", "delete", machine.link
            )  # connections of a cut link outlive its namespace
            _ip("link", "set", machine.link, "up")
            _ip("-n", machine.namespace, "address", "add", f"{PREFIX}.{number + 2}/24", "dev", "eth0")
            _ip("-n", machine.namespace, "link", "set", "eth0", "up")
            _ip("-n", machine.namespace, "link", "set", "lo", "up")
            made.append(machine)
        yield made


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
