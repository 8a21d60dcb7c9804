"""Reads from NCCL's log which transport it has chosen between two processes."""

import os
import re
import tempfile
from pathlib import Path

CHANNEL = re.compile(r"NCCL INFO Channel \d+(?:/\d+)? : .* via (?P<transport>\S.*?)\s*$", flags=re.MULTILINE)
SOCKET = "NET/Socket"
NETWORK = "NET/"


def start() -> Path:
    """Return a file into which NCCL will log. Call this before the process makes its first group."""
    file = Path(tempfile.mkdtemp(prefix="slipstream-probe-")) / "nccl.log"
    file.touch()
    os.environ["NCCL_DEBUG"] = "INFO"
    os.environ["NCCL_DEBUG_FILE"] = str(file)
    os.environ.pop("NCCL_DEBUG_SUBSYS", None)  # the default subsystems include the lines about channels
    return file


def transports(log: str) -> list[str]:
    """Return the distinct transports of all channels, such as `NET/IB/0/GDRDMA`."""
    return sorted({match["transport"] for match in CHANNEL.finditer(log)})


def meaning(names: list[str]) -> str:
    """Return a sentence that explains the transports, with advice for a slow one."""
    network = [name for name in names if name.startswith(NETWORK)]
    if not names:
        return "NCCL's log names no channel"
    if not network:
        return "both processes are on one machine, so no network was measured"
    if all(name.startswith(SOCKET) for name in network):
        return "TCP sockets: where the nodes have RDMA or EFA, NCCL does not use it (docs/networks.md)"
    if all(name.endswith("GDRDMA") for name in network):
        return "RDMA between the memories of the GPUs"
    return "a network other than TCP sockets, at least in part through the memory of the host"
