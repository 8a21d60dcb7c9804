"""The learner's client of replay. Every call is idempotent, and repeated while replay does not answer."""

import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import uuid4

import grpc
from google.protobuf.message import DecodeError

from slipstream.config import RunConfig
from slipstream.records import Activity, Cursor, Evaluation, Generated, Group, HandOut
from slipstream.rpc import codec, errors, group_checks, replay_codec
from slipstream.rpc.channel import STILL_WAITING_SECONDS, call_with_growing_deadline, with_idle_timeout
from slipstream.samples.writer import FilteredGroup
from slipstream.telemetry.logs import Log
from slipstream.v1 import replay_pb2 as pb
from slipstream.v1 import types_pb2
from slipstream.v1.replay_pb2_grpc import ReplayStub

T = TypeVar("T")
SAMPLE_WAIT_SECONDS = 5.0
PATIENCE_SECONDS = 60.0
ACTIVITY_SECONDS = 10.0
INVALID = "invalid"
"""The reason under which the ledger counts a dropped group."""


class TrainedTwice(errors.SlipstreamError):
    """A step trained on groups that replay had given to another step: its weights must not be kept."""


class ReplayClient:
    """Samples batches, acknowledges them, and announces versions.

    Errors of every method: Unreachable after a minute; Superseded when another learner has attached.
    """

    def __init__(self, channel: grpc.aio.Channel, config: RunConfig, *, log: Log | None = None) -> None:
        self._stub = ReplayStub(channel)
        self._answer_seconds = config.rpc.answer_seconds
        self._timeout = config.rpc.timeout_seconds
        self._groups = config.learner.groups_per_step
        self._max_staleness = config.staleness.max_staleness
        self._vocabulary = group_checks.vocabulary_size(config.model.path) if config.model.path else None
        self._log = log or Log(pod="learner", level="info")
        self._learner_id = uuid4().hex
        self._learner_epoch = 0
        self._hand_outs = itertools.count(1)

    async def attach(self, version: int, cursor: Cursor) -> pb.AttachLearnerResponse:
        """Continue from `version`.

        Groups in flight, and groups of steps that were lost, are sampled again.
        """
        request = pb.AttachLearnerRequest(
            version=version, cursor=replay_codec.cursor_to_proto(cursor), learner_id=self._learner_id
        )
        response: pb.AttachLearnerResponse = await self._again(
            "attach", lambda seconds: self._stub.AttachLearner(request, timeout=seconds)
        )
        self._learner_epoch = response.learner_epoch
        return response

    async def sample(self, version: int, *, groups: int | None = None) -> list[Group]:
        """Return a full batch, or this many groups, for the step after `version`.

        The list is empty if there are not enough groups within SAMPLE_WAIT_SECONDS.
        """
        wanted = self._groups if groups is None else groups
        while True:
            batch = await self._again("sample", lambda seconds: self._read(version, wanted, seconds))
            if not batch.invalid:
                return batch.groups
            await self._drop(batch)

    async def _drop(self, batch: "_Batch") -> None:
        """Have replay drop the invalid groups of a batch."""
        for group_id, fault in batch.invalid.items():
            self._log.warning("invalid group dropped", group=group_id, error=fault)
        request = pb.DropGroupsRequest(
            group_ids=list(batch.invalid),
            hand_out=replay_codec.hand_out_to_proto(batch.hand_out),
            reason=INVALID,
        )
        await self._again("drop", lambda seconds: self._stub.DropGroups(request, timeout=seconds))

    async def ack(self, groups: Sequence[Group], version: int) -> tuple[Generated, Cursor]:
        """Acknowledge the groups of the step that made `version`.

        Return the statistics of the groups generated since the step before, and the position in the data.
        Errors: TrainedTwice if replay had given the groups to another step meanwhile.
        """
        request = pb.AckBatchRequest(
            group_ids=[group.group_id for group in groups], version=version, hand_out=_hand_out(groups)
        )
        response = await self._again("ack", lambda seconds: self._stub.AckBatch(request, timeout=seconds))
        if response.retrained:
            raise TrainedTwice(
                f"step {version} trained on {response.retrained} groups that replay had taken back "
                "meanwhile; the step is not kept. Start the learner again: it continues from its last "
                "checkpoint"
            )
        return replay_codec.generated_from_proto(response.generated), replay_codec.cursor_from_proto(
            response.cursor
        )

    async def release(self, groups: Sequence[Group]) -> None:
        """Release sampled groups: they go back into the buffer untrained."""
        request = pb.ReleaseBatchRequest(
            group_ids=[group.group_id for group in groups], hand_out=_hand_out(groups)
        )
        await self._again("release", lambda seconds: self._stub.ReleaseBatch(request, timeout=seconds))

    async def take_filtered(self) -> AsyncIterator[FilteredGroup]:
        """Yield the groups that replay has filtered or dropped since the last call. It is not repeated.

        Errors: AioRpcError, Unreachable.
        """
        call = self._stub.TakeFiltered(pb.TakeFilteredRequest())
        async for response in with_idle_timeout(call, silence_seconds=self._answer_seconds):
            yield FilteredGroup(payload=response.group, reason=response.reason, state=response.state)

    async def announce(self, version: int) -> None:
        """Announce that the fleet serves `version`."""
        request = pb.AnnounceVersionRequest(version=version, learner_epoch=self._learner_epoch)
        await self._again("announce", lambda seconds: self._stub.AnnounceVersion(request, timeout=seconds))

    async def confirm_checkpoint(self, version: int) -> None:
        """Confirm that the checkpoint of `version` is durable."""
        request = pb.ConfirmCheckpointRequest(version=version, learner_epoch=self._learner_epoch)
        await self._again("confirm", lambda seconds: self._stub.ConfirmCheckpoint(request, timeout=seconds))

    async def start_evaluation(
        self, version: int, *, prompts: int, samples_per_prompt: int, reward: str
    ) -> str:
        """Begin an evaluation; return its id."""
        request = pb.StartEvaluationRequest(
            version=version,
            prompts=prompts,
            samples_per_prompt=samples_per_prompt,
            reward=reward,
            learner_epoch=self._learner_epoch,
            request_id=uuid4().hex,
        )
        response = await self._again(
            "start evaluation", lambda seconds: self._stub.StartEvaluation(request, timeout=seconds)
        )
        return str(response.evaluation_id)

    async def evaluation(self, evaluation_id: str) -> Evaluation:
        """Return the state of an evaluation."""
        request = pb.GetEvaluationRequest(evaluation_id=evaluation_id)
        response = await self._again(
            "get evaluation", lambda seconds: self._stub.GetEvaluation(request, timeout=seconds)
        )
        return Evaluation(
            done=response.done,
            version=response.version,
            completions=response.completions,
            errors=response.errors,
            accuracy=response.accuracy if response.HasField("accuracy") else None,
            best_of_n=response.best_of_n if response.HasField("best_of_n") else None,
            majority=response.majority if response.HasField("majority") else None,
            mean_version=response.mean_version,
            by_source=replay_codec.accuracies_from_proto(response.by_source),
        )

    async def take_evaluated(self, evaluation_id: str, start: int) -> list[tuple[int, bytes]]:
        """Return number and bytes of the groups of an evaluation from the number `start` on.

        Replay forgets those before `start`. Errors: AioRpcError.
        """
        request = pb.TakeEvaluatedRequest(evaluation_id=evaluation_id, start=start)
        return await self._again("take evaluated", lambda seconds: self._read_evaluated(request, seconds))

    async def _read_evaluated(
        self, request: pb.TakeEvaluatedRequest, answer_seconds: float
    ) -> list[tuple[int, bytes]]:
        call = self._stub.TakeEvaluated(request)
        return [
            (response.number, response.group)
            async for response in with_idle_timeout(call, silence_seconds=answer_seconds)
        ]

    async def activity(self) -> Activity:
        """Return the ledger and the activity of the rollouts. It is one call only. Errors: AioRpcError."""
        return replay_codec.activity_from_proto(
            await self._stub.GetActivity(pb.GetActivityRequest(), timeout=ACTIVITY_SECONDS)
        )

    async def _read(self, version: int, groups: int, answer_seconds: float) -> "_Batch":
        """Call SampleBatch once, as a new hand-out that revokes the earlier ones.

        While no batch is full, replay sends an empty message each second. That message, and each group, may
        take `answer_seconds` longer, however large the batch is.
        """
        hand_out = HandOut(learner_epoch=self._learner_epoch, number=next(self._hand_outs))
        request = pb.SampleBatchRequest(
            groups=groups,
            version=version,
            max_staleness=self._max_staleness,
            wait_seconds=SAMPLE_WAIT_SECONDS,
            hand_out=replay_codec.hand_out_to_proto(hand_out),
        )
        batch = _Batch(hand_out=hand_out)
        call = self._stub.SampleBatch(request)
        async for response in with_idle_timeout(call, silence_seconds=STILL_WAITING_SECONDS + answer_seconds):
            if response.group:
                batch.add(response.group, self._vocabulary)
        return batch

    async def _again(self, what: str, ask: Callable[[float], Awaitable[T]]) -> T:
        try:
            return await call_with_growing_deadline(
                what,
                ask,
                answer_seconds=self._answer_seconds,
                longest_seconds=self._timeout,
                give_up_after=PATIENCE_SECONDS,
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.ABORTED:
                raise
            raise errors.Superseded(f"{what}: {error.details()}; end this learner") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """The groups of one hand-out, and the faults of the invalid ones by group id."""

    hand_out: HandOut
    groups: list[Group] = field(default_factory=list)
    invalid: dict[str, str] = field(default_factory=dict)

    def add(self, payload: bytes, vocabulary: int | None) -> None:
        packed = group_checks.parse_group(payload)
        try:
            group_checks.check_group(packed, vocabulary)
            message = types_pb2.Group.FromString(payload)
            group = codec.group_from_proto(message, hand_out=self.hand_out, taken=time.time())
            self.groups.append(group)
        except ValueError as error:
            self.invalid[packed.group_id] = f"from worker {packed.worker_id}: {error}"


def decode_group(payload: bytes) -> Group:
    """Return the group of its bytes. Errors: ValueError."""
    try:
        return codec.group_from_proto(types_pb2.Group.FromString(payload))
    except DecodeError as error:
        raise ValueError("the bytes are no group") from error


def _hand_out(groups: Sequence[Group]) -> pb.HandOut:
    """Return the hand-out that a batch came from. Errors: ValueError for groups of several hand-outs."""
    (hand_out,) = {group.hand_out for group in groups}
    assert hand_out is not None, "groups come from `sample`"
    return replay_codec.hand_out_to_proto(hand_out)
