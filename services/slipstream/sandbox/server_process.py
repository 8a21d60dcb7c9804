"""One fork server, as the verifier sees it."""

import asyncio
import secrets
import sys

from slipstream.processes.child import Child
from slipstream.processes.frames import BadFrame, to_frame
from slipstream.sandbox.homes import Home
from slipstream.sandbox.interpreter import ENVIRONMENT, INTERPRETER_FLAGS, SCRIPT, SOURCE_ROOT
from slipstream.sandbox.job import Bounds, Run, RunResult, bounds_to_json, result_from_json
from slipstream.sandbox.layers import Report
from slipstream.sandbox.outer import Outer
from slipstream.sandbox.packages import PackageMissing
from slipstream.sandbox.server import BUBBLEWRAP, WITHOUT_BUBBLEWRAP
from slipstream.sandbox.supervisor import PATIENCE

START_SECONDS = 60.0
MARGIN_SECONDS = 20.0


class SandboxLost(OSError):
    """The infrastructure failed a run: its server could not start, has ended, or said nothing sensible."""


class ServerProcess:
    """A fork server that has one run at a time. It is of no use after SandboxLost."""

    def __init__(self, child: Child, home: Home) -> None:
        self._child = child
        self._home = home
        self.report = Report(active=())

    @classmethod
    async def start(cls, bounds: Bounds, outer: Outer) -> "ServerProcess":
        """A server that is ready, with the report of its walls. Errors: SandboxLost."""
        home = Home.make()
        child = await Child.start(
            lambda descriptor: _command(descriptor, home.path, bounds, outer), environment=ENVIRONMENT
        )
        server = cls(child, home)
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await child.receive()
            if "unusable" in ready:
                raise PackageMissing(f"verifier.isolation.packages: {ready['unusable']}")
            inner = Report(active=ready["active"], missing=ready["missing"])
            server.report = inner.within(outer.missing)
        except BaseException as error:
            await server.kill()
            if isinstance(error, PackageMissing):
                raise
            if isinstance(error, EOFError | OSError | TimeoutError | ValueError | KeyError):
                raise SandboxLost(f"a sandbox did not start: {type(error).__name__}: {error}") from error
            raise
        return server

    async def run(self, run: Run) -> RunResult:
        """What became of a run. Errors: SandboxLost."""
        nonce = secrets.token_hex(16)
        try:
            async with asyncio.timeout(PATIENCE * run.seconds + MARGIN_SECONDS):
                reply = await self._child.exchange(to_frame(run.to_json()) + to_frame({"nonce": nonce}))
            if reply.get("nonce") != nonce:
                raise BadFrame("an answer with another nonce")
            if "failed" in reply:
                raise BadFrame(reply["failed"])
            return result_from_json(reply)
        except (EOFError, OSError, TimeoutError, ValueError, KeyError) as error:
            raise SandboxLost(f"a run was not had: {type(error).__name__}: {error}") from error

    async def kill(self) -> None:
        """End the server and with it all that it started, and remove its folder."""
        await self._child.kill()
        await asyncio.to_thread(self._home.remove)


def _command(descriptor: int, home: str, bounds: Bounds, outer: Outer) -> list[str]:
    wall = outer.bubblewrap
    if wall and bounds.packages:
        wall = wall.with_packages(bounds.packages)
    before = (
        [*wall.command(home, scratch_mib=bounds.scratch_mib), wall.interpreter] if wall else [sys.executable]
    )
    return [
        *before,
        *INTERPRETER_FLAGS,
        str(SCRIPT),
        str(SOURCE_ROOT),
        str(descriptor),
        home,
        bounds_to_json(bounds),
        BUBBLEWRAP if wall else WITHOUT_BUBBLEWRAP,
    ]
