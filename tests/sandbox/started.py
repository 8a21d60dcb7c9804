"""A started sandbox with its metrics and its log."""

import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from slipstream.sandbox.cgroup import Cgroups
from slipstream.sandbox.outer import Use
from slipstream.sandbox.sandbox import Sandbox
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics


@asynccontextmanager
async def started(
    *,
    number: int | None = 1,
    require: Sequence[str] = (),
    bubblewrap: Use = "auto",
    memory_mib: int = 512,
    metrics: Metrics | None = None,
    cgroups: Cgroups | None = None,
) -> AsyncIterator[Sandbox]:
    """Start a sandbox, and close it at the end."""
    sandbox = Sandbox(
        number=number,
        require=require,
        bubblewrap=bubblewrap,
        metrics=metrics or Metrics(),
        log=Log(pod="sandbox", stream=io.StringIO()),
        cgroups=cgroups,
    )
    sandbox.prepare(memory_mib=memory_mib)
    await sandbox.start()
    try:
        yield sandbox
    finally:
        await sandbox.close()
