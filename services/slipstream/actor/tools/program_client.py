"""Runs programs of the policy in the sandbox of the verifier, with retries."""

import grpc

from slipstream.config import RunConfig
from slipstream.rpc.channel import call_with_retries
from slipstream.v1 import verifier_pb2 as pb
from slipstream.v1.verifier_pb2_grpc import VerifierStub

TRIES_SECONDS = 2
"""Time for all tries of a call, as a multiple of the deadline of one: a try that is lost at its end is
repeated."""


class ProgramClient:
    """Repeats calls that a verifier did not answer: a program has no effect outside of its own process."""

    def __init__(self, channel: grpc.aio.Channel, config: RunConfig) -> None:
        """The deadline of a try is the program's own and `verifier.timeout_seconds`, to wait for its turn."""
        self._stub = VerifierStub(channel)
        self._timeout = config.verifier.timeout_seconds

    async def run(self, request: pb.RunProgramRequest) -> pb.RunProgramResponse:
        """Return how the program ended.

        Errors: Unreachable if no verifier answers in time; grpc.aio.AioRpcError for a status that no later
        call will change.
        """
        timeout = self._timeout + request.seconds
        return await call_with_retries(
            "run a program",
            lambda: self._stub.RunProgram(request, timeout=timeout),
            give_up_after=TRIES_SECONDS * timeout,
        )
