"""What the learner asks of replay. Every call is idempotent, and tried again while replay is away."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import uuid4

import grpc

from slipstream.config import RunConfig
from slipstream.rpc import codec
from slipstream.rpc.channel import ask_again, call_again
from slipstream.types import Activity, Cursor, Evaluation, Generated, Group
from slipstream.v1 import replay_pb2 as pb
from slipstream.v1.replay_pb2_grpc import ReplayStub

T = TypeVar("T")
SAMPLE_WAIT_SECONDS = 5.0
PATIENCE_SECONDS = 60.0
ACTIVITY_SECONDS = 10.0


class ReplayClient:
    """Samples, acknowledges, announces. Errors of every method: Unreachable after a minute."""

    def __init__(self, channel: grpc.aio.Channel, config: RunConfig) -> None:
        self._stub = ReplayStub(channel)
        self._answer_seconds = config.rpc.answer_seconds
        self._timeout = config.rpc.timeout_seconds
        self._groups = config.learner.groups_per_step
        self._max_staleness = config.staleness.max_staleness

    async def attach(self, version: int, cursor: Cursor) -> pb.AttachLearnerResponse:
        """Continue from `version`: what was in flight and what lost steps consumed is sampled again."""
        request = pb.AttachLearnerRequest(version=version, cursor=codec.cursor_to_proto(cursor))
        return await self._again("attach", lambda seconds: self._stub.AttachLearner(request, timeout=seconds))

    async def sample(self, version: int, *, groups: int | None = None) -> list[Group]:
        """A full batch (or so many groups) for the step after `version`; nothing when there is none within
        some seconds."""
        request = pb.SampleBatchRequest(
            groups=self._groups if groups is None else groups,
            version=version,
            max_staleness=self._max_staleness,
            wait_seconds=SAMPLE_WAIT_SECONDS,
        )
        return await call_again("sample", lambda: self._read(request), give_up_after=PATIENCE_SECONDS)

    async def ack(self, groups: Sequence[Group], version: int) -> tuple[Generated, Cursor]:
        """These groups took part in the step that made `version`; what was generated since the step before,
        and where the data stand."""
        request = pb.AckBatchRequest(group_ids=[group.group_id for group in groups], version=version)
        response = await self._again("ack", lambda seconds: self._stub.AckBatch(request, timeout=seconds))
        return codec.generated_from_proto(response.generated), codec.cursor_from_proto(response.cursor)

    async def release(self, groups: Sequence[Group]) -> None:
        """Put sampled groups back untrained."""
        request = pb.ReleaseBatchRequest(group_ids=[group.group_id for group in groups])
        await self._again("release", lambda seconds: self._stub.ReleaseBatch(request, timeout=seconds))

    async def announce(self, version: int) -> None:
        """The fleet serves `version`."""
        request = pb.AnnounceVersionRequest(version=version)
        await self._again("announce", lambda seconds: self._stub.AnnounceVersion(request, timeout=seconds))

    async def confirm_checkpoint(self, version: int) -> None:
        """The checkpoint of `version` is durable."""
        request = pb.ConfirmCheckpointRequest(version=version)
        await self._again("confirm", lambda seconds: self._stub.ConfirmCheckpoint(request, timeout=seconds))

    async def start_evaluation(
        self, version: int, *, prompts: int, samples_per_prompt: int, reward: str
    ) -> str:
        """Begin an evaluation; returns its name."""
        request = pb.StartEvaluationRequest(
            version=version,
            prompts=prompts,
            samples_per_prompt=samples_per_prompt,
            reward=reward,
            request_id=uuid4().hex,
        )
        response = await self._again(
            "start evaluation", lambda seconds: self._stub.StartEvaluation(request, timeout=seconds)
        )
        return str(response.evaluation_id)

    async def evaluation(self, evaluation_id: str) -> Evaluation:
        """The state of an evaluation."""
        request = pb.GetEvaluationRequest(evaluation_id=evaluation_id)
        response = await self._again(
            "get evaluation", lambda seconds: self._stub.GetEvaluation(request, timeout=seconds)
        )
        return Evaluation(
            done=response.done,
            version=response.version,
            completions=response.completions,
            errors=response.errors,
            accuracy=response.accuracy,
            mean_version=response.mean_version,
        )

    async def activity(self) -> Activity:
        """The ledger, and what the workers are doing. Errors: AioRpcError, as it is asked only once."""
        return codec.activity_from_proto(
            await self._stub.GetActivity(pb.GetActivityRequest(), timeout=ACTIVITY_SECONDS)
        )

    async def _read(self, request: pb.SampleBatchRequest) -> list[Group]:
        call = self._stub.SampleBatch(request, timeout=SAMPLE_WAIT_SECONDS + self._timeout)
        return [codec.group_from_proto(response.group) async for response in call]

    async def _again(self, what: str, ask: Callable[[float], Awaitable[T]]) -> T:
        return await ask_again(
            what,
            ask,
            answer_seconds=self._answer_seconds,
            longest_seconds=self._timeout,
            give_up_after=PATIENCE_SECONDS,
        )
