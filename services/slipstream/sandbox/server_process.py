"""The parent's side of one fork server."""

import asyncio
import secrets
import sys

from slipstream.processes.child import Child
from slipstream.processes.frames import BadFrame, to_frame
from slipstream.sandbox import homes, job, layers, packages, supervisor
from slipstream.sandbox.interpreter import ENVIRONMENT, INTERPRETER_FLAGS, SCRIPT, SOURCE_ROOT
from slipstream.sandbox.outer import Outer
from slipstream.sandbox.server import BUBBLEWRAP, WITHOUT_BUBBLEWRAP

START_SECONDS = 60.0
MARGIN_SECONDS = 20.0


class SandboxLost(OSError):
    """The infrastructure failed a run: its server did not start, has ended, or sent an invalid reply."""


class ServerProcess:
    """A fork server that executes one run at a time. After SandboxLost it can only be killed."""

    def __init__(self, child: Child, home: homes.Home) -> None:
        self._child = child
        self._home = home
        self.report = layers.Report(active=())

    @classmethod
    async def start(cls, bounds: job.Bounds, outer: Outer) -> "ServerProcess":
        """Start a server, and wait until it is ready. Errors: SandboxLost, PackageMissing."""
        home = homes.Home.make()
        child = await Child.start(
            lambda descriptor: _command(descriptor, home.path, bounds, outer), environment=ENVIRONMENT
        )
        server = cls(child, home)
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await child.receive()
            if "unusable" in ready:
                raise packages.PackageMissing(ready["unusable"])
            inner = layers.Report(active=ready["active"], missing=ready["missing"])
            server.report = inner.within(outer.missing)
        except BaseException as error:  # a cancellation too must not leave the child process behind
            await server.kill()
            if isinstance(error, packages.PackageMissing):
                raise
            if isinstance(error, EOFError | OSError | TimeoutError | ValueError | KeyError):
                raise SandboxLost(f"a sandbox did not start: {type(error).__name__}: {error}") from error
            raise
        return server

    async def run(self, run: job.Run) -> job.RunResult:
        """Execute a run, and return its result. Errors: SandboxLost."""
        nonce = secrets.token_hex(16)
        try:
            async with asyncio.timeout(supervisor.MAX_DEADLINES * run.seconds + MARGIN_SECONDS):
                reply = await self._child.exchange(to_frame(run.to_json()) + to_frame({"nonce": nonce}))
            if reply.get("nonce") != nonce:
                raise BadFrame("the reply has another nonce")
            if "failed" in reply:
                raise BadFrame(reply["failed"])
            return job.result_from_json(reply)
        except (EOFError, OSError, TimeoutError, ValueError, KeyError) as error:
            raise SandboxLost(f"a run has no result: {type(error).__name__}: {error}") from error

    async def kill(self) -> None:
        """Kill the server with all its descendants, and remove its folder."""
        await self._child.kill()
        await asyncio.to_thread(self._home.remove)


def _command(descriptor: int, home: str, bounds: job.Bounds, outer: Outer) -> list[str]:
    bubblewrap = outer.bubblewrap
    if bubblewrap and bounds.packages:
        bubblewrap = bubblewrap.with_packages(bounds.packages)
    interpreter = [sys.executable]
    if bubblewrap:
        interpreter = [*bubblewrap.command(home, scratch_mib=bounds.scratch_mib), bubblewrap.interpreter]
    return [
        *interpreter,
        *INTERPRETER_FLAGS,
        str(SCRIPT),
        str(SOURCE_ROOT),
        str(descriptor),
        home,
        job.bounds_to_json(bounds),
        BUBBLEWRAP if bubblewrap else WITHOUT_BUBBLEWRAP,
    ]
