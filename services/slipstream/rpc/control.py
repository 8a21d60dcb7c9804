"""Control of a running run from outside: pause and resume admission, write a checkpoint now.

The callers are `slipstream control`, `slipstream run`, and any other console.
"""

from dataclasses import dataclass

import grpc

from slipstream.config import RpcConfig
from slipstream.records import Admission
from slipstream.rpc import errors, replay_codec
from slipstream.rpc.channel import call_with_retries, open_channel
from slipstream.v1.learner_pb2 import SaveCheckpointRequest
from slipstream.v1.learner_pb2_grpc import FleetStub
from slipstream.v1.replay_pb2 import SetAdmissionRequest
from slipstream.v1.replay_pb2_grpc import ReplayStub

ANSWER_SECONDS = 2.0
PATIENCE_SECONDS = 15.0
"""Longest time for which a change of admission is retried; replay is back after a restart by then."""
SAVE_SECONDS = 600.0
"""Longest wait for a checkpoint: for the end of the running step, and for the writing of the files."""


class ControlFailed(errors.SlipstreamError):
    """The run did not do what was requested; the message has the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionChange:
    """The state of admission after a call, and whether this call has changed it."""

    admission: Admission
    changed: bool


async def set_admission(
    replay_address: str, config: RpcConfig, *, paused: bool, by: str, reason: str = ""
) -> AdmissionChange:
    """Pause admission, or end the pause. `by`: who does so, and `reason`: why, both for people.

    Errors: ControlFailed.
    """
    request = SetAdmissionRequest(paused=paused, by=by, reason=reason)
    async with open_channel(replay_address, config) as channel:
        stub = ReplayStub(channel)
        try:
            response = await call_with_retries(
                "set admission",
                lambda: stub.SetAdmission(request, timeout=ANSWER_SECONDS),
                give_up_after=PATIENCE_SECONDS,
            )
        except (errors.SlipstreamError, grpc.aio.AioRpcError) as error:
            raise ControlFailed(f"replay at {replay_address}: {errors.reason_of(error)}") from error
    return AdmissionChange(
        admission=replay_codec.admission_from_proto(response.admission), changed=response.changed
    )


async def save_checkpoint(
    learner_address: str, config: RpcConfig, *, wait_seconds: float = SAVE_SECONDS
) -> int:
    """Have the learner write a checkpoint after its step; return the version when it is durable.

    The learner writes the checkpoint also if it takes longer than `wait_seconds`. Errors: ControlFailed.
    """
    async with open_channel(learner_address, config) as channel:
        stub = FleetStub(channel)
        try:
            response = await stub.SaveCheckpoint(SaveCheckpointRequest(), timeout=wait_seconds)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise ControlFailed(
                    f"the checkpoint is not durable after {wait_seconds:g} s; the learner goes on writing, "
                    "and a second call waits for the same checkpoint"
                ) from error
            raise ControlFailed(f"learner at {learner_address}: {errors.reason_of(error)}") from error
    return int(response.version)
