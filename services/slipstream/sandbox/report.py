"""`python -m slipstream.sandbox.report`: print this machine's isolation layers and capacity as JSON."""

import asyncio
import json
from dataclasses import asdict

from slipstream.sandbox import capacity, cgroup, job, layers, server_process
from slipstream.sandbox.outer import find


async def report() -> layers.Report:
    """Start a fork server, and return its report. Errors: SandboxLost."""
    outer = await find("auto")
    server = await server_process.ServerProcess.start(job.Bounds(), outer)
    await server.kill()
    return server.report


if __name__ == "__main__":
    print(
        json.dumps(
            {**asdict(asyncio.run(report())), "room": asdict(capacity.Capacity.of_this_process(cgroup.own()))}
        )
    )
