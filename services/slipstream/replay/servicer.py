"""The Replay service: check the request, execute one atomic script in Redis, send the response."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from slipstream.config import RunConfig, sources
from slipstream.prompts import PromptSource
from slipstream.records import HandOut, InsertOutcome, Lease, Purpose
from slipstream.replay import checks, selection, values, waiting
from slipstream.replay.curriculum import Curriculum
from slipstream.replay.evaluations import EvaluationStore
from slipstream.replay.store import ReplayStore
from slipstream.replay.summary import Summary, summarise
from slipstream.rpc import channel, errors, group_checks, replay_codec
from slipstream.samples.share import is_kept
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.v1 import replay_pb2 as pb
from slipstream.v1 import replay_pb2_grpc
from slipstream.v1.packed_pb2 import PackedGroup

INVALID = "invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collaborators:
    """The objects that the service uses; setting `stop` ends its waits early."""

    config: RunConfig
    store: ReplayStore
    curriculum: Curriculum
    evaluations: EvaluationStore
    prompts: PromptSource
    metrics: Metrics
    log: Log
    stop: asyncio.Event


class ReplayServicer(replay_pb2_grpc.ReplayServicer):
    """The service. It has no state of its own, so any replica can answer any call."""

    def __init__(self, collaborators: Collaborators) -> None:
        self._with = collaborators
        self._store = collaborators.store
        config = collaborators.config
        self._weights: dict[str, float] = {reward.name: reward.weight for reward in config.rewards}
        self._evaluated = sources.by_source(config, lambda source: source.data.evaluation_reward or "")
        self._sources = frozenset(sources.source_labels(config)) or frozenset({""})
        self._stored_share = config.learner.samples.share
        self._vocabulary = group_checks.vocabulary_size(config.model.path) if config.model.path else None

    async def LeasePrompts(self, request: pb.LeasePromptsRequest, context: Any) -> pb.LeasePromptsResponse:
        """Wait for admission, and lease prompts. If the actor cancels the call, its leases are returned."""
        checks.check_named(worker_id=request.worker_id)
        checks.check_at_least(1, max_prompts=request.max_prompts)

        wanted = values.LeaseRequest(
            worker=request.worker_id,
            max_prompts=request.max_prompts,
            serving_version=request.serving_version,
            request_id=request.request_id,
            attempt=max(1, request.attempt),
        )

        async def attempt() -> tuple[values.Slot, ...]:
            step = self._with.curriculum.lease(wanted)
            return await waiting.finish_or_undo(
                step, lambda slots: self._return_slots(request.worker_id, slots)
            )

        with self._with.metrics.waiting("admission"):
            slots = await waiting.poll(
                attempt, seconds=checks.check_wait(request.wait_seconds), stop=self._with.stop
            )
        return pb.LeasePromptsResponse(
            leases=[replay_codec.lease_to_proto(self._lease(slot)) for slot in slots]
        )

    async def RenewLeases(self, request: pb.RenewLeasesRequest, context: Any) -> pb.RenewLeasesResponse:
        """Extend the leases that the actor still holds, and name those that it has lost."""
        checks.check_named(worker_id=request.worker_id)
        checks.check_group_ids(ref.group_id for ref in request.leases)
        lost = await self._store.renew(
            request.worker_id,
            [(ref.group_id, ref.lease_epoch) for ref in request.leases],
            serving_version=request.serving_version,
            scoring_failure=request.scoring_failure[: checks.LONGEST_FAILURE],
            throughput=_throughput(request),
        )
        return pb.RenewLeasesResponse(lost=[pb.LeaseRef(group_id=i, lease_epoch=e) for i, e in lost])

    async def ReturnPrompts(self, request: pb.ReturnPromptsRequest, context: Any) -> pb.ReturnPromptsResponse:
        """Return leases without groups."""
        checks.check_named(worker_id=request.worker_id)
        checks.check_group_ids(ref.group_id for ref in request.leases)
        leases = [(ref.group_id, ref.lease_epoch) for ref in request.leases]
        fault, engines_lost = checks.check_fault(request.fault, engines_lost=request.engines_lost)
        returned = await self._store.return_leases(
            request.worker_id, leases, fault=fault, engines_lost=engines_lost
        )
        return pb.ReturnPromptsResponse(returned=returned)

    async def InsertGroup(self, request: pb.InsertGroupRequest, context: Any) -> pb.InsertGroupResponse:
        """Insert a finished group. Its bytes are stored unchanged."""
        group = group_checks.parse_group(request.group)
        checks.check_group_ids([group.group_id])
        inserted = await self._insert(group, request.group)
        if inserted.reason == INVALID:
            self._with.log.warning(
                "invalid group", worker=group.worker_id, group=group.group_id, error=inserted.detail
            )
        if inserted.outcome is InsertOutcome.FILTERED and is_kept(group.group_id, self._stored_share):
            with suppress(errors.SlipstreamError):  # the group is settled, whether it can be stored or not
                await self._store.keep_filtered(inserted.reason, request.group)
        outcome = replay_codec.INSERT_OUTCOMES[inserted.outcome]
        return pb.InsertGroupResponse(outcome=outcome, filter_reason=inserted.reason, detail=inserted.detail)

    async def ReportRollout(self, request: pb.ReportRolloutRequest, context: Any) -> pb.ReportRolloutResponse:
        """Record the heartbeat of an inference server."""
        checks.check_named(worker_id=request.rollout.worker_id)
        listed = replay_codec.listed_rollout_from_proto(request.rollout)
        await self._store.report_rollout(listed, throughput=_throughput(request))
        return pb.ReportRolloutResponse()

    async def ListRollouts(self, request: pb.ListRolloutsRequest, context: Any) -> pb.ListRolloutsResponse:
        """Return the inference servers that take requests."""
        listed = await self._store.list_rollouts()
        return pb.ListRolloutsResponse(
            rollouts=[replay_codec.listed_rollout_to_proto(each) for each in listed]
        )

    async def SampleBatch(
        self, request: pb.SampleBatchRequest, context: Any
    ) -> AsyncIterator[pb.SampleBatchResponse]:
        """Stream a batch.

        If the learner cancels the call, the batch is released, unless a newer call holds it.
        """
        hand_out = _hand_out(request.hand_out)
        checks.check_at_least(1, groups=request.groups)
        checks.check_at_least(0, version=request.version, max_staleness=request.max_staleness)
        seconds_left = checks.check_wait(request.wait_seconds)
        with self._with.metrics.waiting("batch"):
            while not (ids := await self._batch_within(seconds_left, request, hand_out)):
                seconds_left -= channel.STILL_WAITING_SECONDS
                if seconds_left <= 0 or self._with.stop.is_set():
                    return
                yield pb.SampleBatchResponse()  # shows the learner that the call is alive
        delivered = False
        try:
            async for payload in self._store.payloads(ids):
                yield pb.SampleBatchResponse(group=payload)
            delivered = True
        finally:
            if not delivered:
                await self._store.release(ids, hand_out)

    async def AckBatch(self, request: pb.AckBatchRequest, context: Any) -> pb.AckBatchResponse:
        """Record that an optimizer step trained on these groups."""
        checks.check_at_least(0, version=request.version)
        hand_out = _hand_out(request.hand_out)
        result = await self._store.ack(request.group_ids, version=request.version, hand_out=hand_out)
        return pb.AckBatchResponse(
            acked=result.acked,
            retrained=result.retrained,
            generated=replay_codec.generated_to_proto(result.generated),
            cursor=replay_codec.cursor_to_proto(result.cursor),
        )

    async def ReleaseBatch(self, request: pb.ReleaseBatchRequest, context: Any) -> pb.ReleaseBatchResponse:
        """Release a batch to the buffer."""
        released = await self._store.release(request.group_ids, _hand_out(request.hand_out))
        return pb.ReleaseBatchResponse(released=released)

    async def DropGroups(self, request: pb.DropGroupsRequest, context: Any) -> pb.DropGroupsResponse:
        """Drop groups of a batch that cannot be trained on."""
        checks.check_named(reason=request.reason)
        hand_out = _hand_out(request.hand_out)
        dropped = await self._store.drop(request.group_ids, hand_out, reason=request.reason)
        return pb.DropGroupsResponse(dropped=dropped)

    async def TakeFiltered(
        self, request: pb.TakeFilteredRequest, context: Any
    ) -> AsyncIterator[pb.TakeFilteredResponse]:
        """Stream the filtered and dropped groups that the learner has not taken yet."""
        async for state, reason, payload in self._store.take_filtered():
            yield pb.TakeFilteredResponse(group=payload, reason=reason, state=state)

    async def TakeEvaluated(
        self, request: pb.TakeEvaluatedRequest, context: Any
    ) -> AsyncIterator[pb.TakeEvaluatedResponse]:
        """Stream the groups of an evaluation that the learner lacks."""
        checks.check_named(evaluation_id=request.evaluation_id)
        async for number, payload in self._with.evaluations.take(request.evaluation_id, request.start):
            yield pb.TakeEvaluatedResponse(group=payload, number=number)

    async def AnnounceVersion(
        self, request: pb.AnnounceVersionRequest, context: Any
    ) -> pb.AnnounceVersionResponse:
        """Record that the fleet serves a version, which opens admission."""
        checks.check_at_least(0, version=request.version)
        await self._store.announce(request.version, learner_epoch=request.learner_epoch)
        return pb.AnnounceVersionResponse()

    async def ConfirmCheckpoint(
        self, request: pb.ConfirmCheckpointRequest, context: Any
    ) -> pb.ConfirmCheckpointResponse:
        """Free the groups that a durable checkpoint covers."""
        checks.check_at_least(0, version=request.version)
        freed = await self._store.confirm_checkpoint(request.version, learner_epoch=request.learner_epoch)
        return pb.ConfirmCheckpointResponse(freed=freed)

    async def AttachLearner(self, request: pb.AttachLearnerRequest, context: Any) -> pb.AttachLearnerResponse:
        """Attach a learner that begins, or continues from a checkpoint."""
        checks.check_at_least(0, version=request.version)
        checks.check_named(learner_id=request.learner_id)
        cursor = replay_codec.cursor_from_proto(request.cursor)
        attached = await self._store.attach(request.version, cursor, learner_id=request.learner_id)
        return pb.AttachLearnerResponse(
            released=attached.released, restored=attached.restored, learner_epoch=attached.learner_epoch
        )

    async def StartEvaluation(
        self, request: pb.StartEvaluationRequest, context: Any
    ) -> pb.StartEvaluationResponse:
        """Queue held-out prompts: as many as the request names, or all if there are fewer."""
        self._check_evaluation(request)
        evaluation_id = await self._with.evaluations.start(
            request.version,
            prompts=min(request.prompts, self._with.prompts.held_out_size or request.prompts),
            samples_per_prompt=request.samples_per_prompt,
            reward=request.reward,
            learner_epoch=request.learner_epoch,
            request_id=request.request_id,
        )
        return pb.StartEvaluationResponse(evaluation_id=evaluation_id)

    async def GetEvaluation(self, request: pb.GetEvaluationRequest, context: Any) -> pb.GetEvaluationResponse:
        """Return the state of an evaluation."""
        evaluation = await self._with.evaluations.get(request.evaluation_id)
        return pb.GetEvaluationResponse(
            done=evaluation.done,
            version=evaluation.version,
            completions=evaluation.completions,
            errors=evaluation.errors,
            accuracy=evaluation.accuracy,
            best_of_n=evaluation.best_of_n,
            majority=evaluation.majority,
            mean_version=evaluation.mean_version,
            by_source=replay_codec.accuracies_to_proto(evaluation.by_source),
        )

    async def SetAdmission(self, request: pb.SetAdmissionRequest, context: Any) -> pb.SetAdmissionResponse:
        """Pause admission, or end the pause."""
        checks.check_named(by=request.by)
        by, reason = checks.cut_notes(request.by, request.reason)
        admission, changed = await self._store.set_admission(paused=request.paused, by=by, reason=reason)
        if changed:
            what = "admission paused" if request.paused else "admission resumed"
            self._with.log.info(what, by=by, reason=reason)
        return pb.SetAdmissionResponse(admission=replay_codec.admission_to_proto(admission), changed=changed)

    async def GetStats(self, request: pb.GetStatsRequest, context: Any) -> pb.GetStatsResponse:
        """Return the current ledger."""
        stats = await self._store.stats()
        return pb.GetStatsResponse(
            ledger=replay_codec.ledger_to_proto(stats.ledger),
            version=stats.version,
            admission_free=stats.admission_free,
            residual=stats.ledger.residual,
            kept=stats.kept,
            admission=replay_codec.admission_to_proto(stats.admission),
        )

    async def GetActivity(self, request: pb.GetActivityRequest, context: Any) -> pb.GetActivityResponse:
        """Return the state of each actor and rollout."""
        return replay_codec.activity_to_proto(await self._store.activity())

    def _lease(self, slot: values.Slot) -> Lease:
        training = slot.purpose is Purpose.TRAINING
        prompt = self._with.prompts.training if training else self._with.prompts.held_out
        return Lease(
            group_id=slot.group_id,
            lease_epoch=slot.epoch,
            dispatch_index=slot.index,
            prompt=prompt(slot.index),
            group_size=slot.size,
            seconds=self._with.config.replay.lease_seconds,
            purpose=slot.purpose,
            engines_lost=slot.engines_lost,
        )

    async def _return_slots(self, worker: str, slots: Sequence[values.Slot]) -> int:
        return await self._store.return_leases(worker, [(slot.group_id, slot.epoch) for slot in slots])

    async def _insert(self, group: PackedGroup, payload: bytes) -> values.Inserted:
        try:
            group_checks.check_group(group, self._vocabulary)
            self._check_source(group)
            summary = summarise(group, self._weights)
        except group_checks.InvalidGroup as error:
            summary = Summary(prompt_id=group.prompt.prompt_id, fault=str(error))
        if values.purpose_of(group.group_id) is Purpose.EVALUATION:
            selections = {} if summary.fault else selection.select(group, self._weights)
            return await self._with.evaluations.insert(
                group.group_id,
                group.lease_epoch,
                summary,
                selections,
                reward="" if summary.fault else self._evaluated.of(summary.source),
                payload=payload if is_kept(group.group_id, self._stored_share) else b"",
            )
        return await self._store.insert(group.group_id, group.lease_epoch, summary, payload)

    def _check_source(self, group: PackedGroup) -> None:
        """Check that the numbers of the group can be counted by source. Errors: InvalidGroup."""
        if group.prompt.source not in self._sources:
            names = ", ".join(sorted(self._sources)) or "none"
            raise group_checks.InvalidGroup(
                f"group {group.group_id} is of the source {group.prompt.source!r}; the run has: {names}"
            )

    async def _batch_within(
        self, seconds: float, request: pb.SampleBatchRequest, hand_out: HandOut
    ) -> tuple[str, ...]:
        async def attempt() -> tuple[str, ...]:
            step = self._store.sample(
                request.groups,
                version=request.version,
                max_staleness=request.max_staleness,
                hand_out=hand_out,
            )
            return await waiting.finish_or_undo(step, lambda ids: self._store.release(ids, hand_out))

        wait_seconds = min(seconds, channel.STILL_WAITING_SECONDS)
        return await waiting.poll(attempt, seconds=wait_seconds, stop=self._with.stop)

    def _check_evaluation(self, request: pb.StartEvaluationRequest) -> None:
        checks.check_at_least(0, version=request.version)
        checks.check_at_least(1, prompts=request.prompts, samples_per_prompt=request.samples_per_prompt)
        checks.check_named(request_id=request.request_id)
        names = [reward.name for reward in self._with.config.rewards]
        if request.reward not in names and not all(self._evaluated.all()):
            raise errors.InvalidRequest(
                f"reward is {request.reward!r}; the run has {names}; set evaluation.reward"
            )


def _hand_out(message: pb.HandOut) -> HandOut:
    """Return the hand-out of a request. Errors: InvalidRequest when its number is missing."""
    checks.check_at_least(1, hand_out=message.number)
    return replay_codec.hand_out_from_proto(message)


def _throughput(message: pb.RenewLeasesRequest | pb.ReportRolloutRequest) -> float | None:
    """Return the rate that a heartbeat reports; None if it reports none. Errors: InvalidRequest."""
    return checks.check_throughput(message.throughput) if message.HasField("throughput") else None
