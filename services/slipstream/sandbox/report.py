"""`python -m slipstream.sandbox.report`: print this machine's isolation layers and capacity as JSON."""

import asyncio
import json
from dataclasses import asdict

from slipstream.sandbox.capacity import Capacity
from slipstream.sandbox.cgroup import own
from slipstream.sandbox.job import Bounds
from slipstream.sandbox.layers import Report
from slipstream.sandbox.outer import find
from slipstream.sandbox.server_process import ServerProcess


async def report() -> Report:
    """Start a fork server, and return its report. Errors: SandboxLost."""
    outer = await find("auto")
    server = await ServerProcess.start(Bounds(), outer)
    await server.kill()
    return server.report


if __name__ == "__main__":
    print(json.dumps({**asdict(asyncio.run(report())), "room": asdict(Capacity.of_this_process(own()))}))
