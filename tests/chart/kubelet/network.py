"""The network of a machine in its own namespace: a bridge, and for every pod a namespace with an address.

Each namespace is held by a sleeping process that dies with this one, so nothing is left. Needs root.
"""

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from itertools import islice
from pathlib import Path

CLONE_NEWNET = 0x40000000
HOLDER = ["sleep", "infinity"]
DIE_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]
NAMESPACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The addresses of pods; number 0 is the machine itself."""

    subnet: str
    bits: int
    options: str = ""

    def address(self, number: int) -> str:
        """Return the address of the pod with a number."""
        return str(next(islice(ip_network(f"{self.subnet}/{self.bits}").hosts(), number, None)))


IPV4 = Family(subnet="10.77.0.0", bits=16)
IPV6 = Family(subnet="fd77::", bits=64, options="nodad")


class Network:
    """A bridge and the addresses on it, of one address family."""

    def __init__(self, family: Family = IPV4) -> None:
        self._family = family
        self.node_address = family.address(0)
        self._holders: list[subprocess.Popen[bytes]] = []
        self.node = self._hold([*DIE_WITH_PARENT, "unshare", "--net"], Path("/proc/self/ns/net"))
        self._made = 0
        self._on_node("ip link set lo up")
        self._on_node("ip link add bridge type bridge")
        self._on_node(f"ip addr add {self.node_address}/{family.bits} dev bridge {family.options}")
        self._on_node("ip link set bridge up")

    def add(self) -> tuple[int, str]:
        """Create a namespace with an address; return the process that holds it, and the address."""
        self._made += 1
        address = self._family.address(self._made)
        inside = Path(f"/proc/{self.node}/ns/net")
        pod = self._hold([*DIE_WITH_PARENT, "nsenter", f"--net={inside}", "unshare", "--net"], inside)
        link = f"pod{self._made}"
        self._on_node(f"ip link add {link} type veth peer name eth0 netns {pod}")
        self._on_node(f"ip link set {link} master bridge up")
        for command in (
            "ip link set lo up",
            f"ip addr add {address}/{self._family.bits} dev eth0 {self._family.options}",
            "ip link set eth0 up",
            f"ip route add default via {self.node_address}",
        ):
            _run(["nsenter", f"--net=/proc/{pod}/ns/net", *command.split()])
        return pod, address

    def remove(self, pod: int) -> None:
        """Release the namespace of a pod; it ends with its last process."""
        for holder in self._holders:
            if holder.pid == pod:
                holder.kill()
                holder.wait()

    def close(self) -> None:
        """Remove the bridge and all namespaces."""
        for holder in reversed(self._holders):
            holder.kill()
            holder.wait()

    def _hold(self, words: Sequence[str], other: Path) -> int:
        outside = os.readlink(other)
        holder = subprocess.Popen([*words, *HOLDER])
        self._holders.append(holder)
        deadline = time.monotonic() + NAMESPACE_SECONDS
        own = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{holder.pid}/ns/net") in (outside, own):
            if holder.poll() is not None or time.monotonic() > deadline:
                raise OSError("cannot make a network namespace: these tests need root and unshare")
            time.sleep(0.01)
        return holder.pid

    def _on_node(self, command: str) -> None:
        _run(["nsenter", f"--net=/proc/{self.node}/ns/net", *command.split()])


def _run(words: Sequence[str]) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=NAMESPACE_SECONDS)


@contextmanager
def inside_network(process: int) -> Iterator[None]:
    """Move this thread into the network namespace of a process; its new sockets belong to that namespace."""
    with open("/proc/thread-self/ns/net", "rb") as before, open(f"/proc/{process}/ns/net", "rb") as other:
        _set_namespace(other.fileno())
        try:
            yield
        finally:
            _set_namespace(before.fileno())


def _set_namespace(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
