"""The proxies of a pod as a process: proxies.py SEED (FAULT_FILE TARGET)… prints their addresses."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.fault import FaultFile
from faults.grpc_proxy import GrpcProxy
from faults.tcp_proxy import TcpProxy
from slipstream.processes.lifetime.parent_death import die_with_parent


async def main(seed: int, files: list[str], targets: list[str]) -> None:
    """Client ─▶ TCP proxy ─▶ gRPC proxy (with a seed above 0) ─▶ server."""
    addresses, proxies = [], []
    for file, target in zip(files, targets, strict=True):
        faults = FaultFile(Path(file))
        if seed:
            grpc_proxy = GrpcProxy(target, faults, seed=seed)
            proxies.append(grpc_proxy)
            target = await grpc_proxy.listen()
        proxy = TcpProxy(target, faults)
        proxies.append(proxy)
        addresses.append(await proxy.listen())
    print(json.dumps(addresses), flush=True)
    os.close(1)
    await asyncio.Event().wait()


if __name__ == "__main__":
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asyncio.run(main(int(sys.argv[1]), sys.argv[2::2], sys.argv[3::2]))
