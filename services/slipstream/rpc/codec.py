"""Conversion between the values of slipstream.records and the messages of proto/."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TypeVar

from slipstream import records as t
from slipstream.v1 import replay_pb2 as replay
from slipstream.v1 import rollout_pb2 as rollout
from slipstream.v1 import types_pb2 as pb

V = TypeVar("V")
FINISH_REASONS = {
    t.FinishReason.STOP: pb.FINISH_REASON_STOP,
    t.FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}
OUTCOMES = {
    t.Outcome.SCORE: pb.OUTCOME_SCORE,
    t.Outcome.INVALID_ANSWER: pb.OUTCOME_INVALID_ANSWER,
    t.Outcome.ERROR: pb.OUTCOME_ERROR,
}
PURPOSES = {
    t.Purpose.TRAINING: replay.PURPOSE_TRAINING,
    t.Purpose.EVALUATION: replay.PURPOSE_EVALUATION,
}
INSERT_OUTCOMES = {
    t.InsertOutcome.ACCEPTED: replay.INSERT_OUTCOME_ACCEPTED,
    t.InsertOutcome.DUPLICATE: replay.INSERT_OUTCOME_DUPLICATE,
    t.InsertOutcome.FENCED: replay.INSERT_OUTCOME_FENCED,
    t.InsertOutcome.FILTERED: replay.INSERT_OUTCOME_FILTERED,
}
WORKER_KINDS = {
    t.WorkerKind.ACTOR: replay.WORKER_KIND_ACTOR,
    t.WorkerKind.ROLLOUT: replay.WORKER_KIND_ROLLOUT,
}
_FINISH_REASON_OF: dict[int, t.FinishReason] = {number: value for value, number in FINISH_REASONS.items()}
_OUTCOME_OF: dict[int, t.Outcome] = {number: value for value, number in OUTCOMES.items()}
_PURPOSE_OF: dict[int, t.Purpose] = {number: value for value, number in PURPOSES.items()}
_INSERT_OUTCOME_OF: dict[int, t.InsertOutcome] = {number: value for value, number in INSERT_OUTCOMES.items()}
_WORKER_KIND_OF: dict[int, t.WorkerKind] = {number: value for value, number in WORKER_KINDS.items()}


def prompt_to_proto(prompt: t.Prompt) -> pb.Prompt:
    """Prompt → message."""
    messages = [pb.ChatMessage(role=m.role, content=m.content) for m in prompt.messages]
    return pb.Prompt(
        prompt_id=prompt.prompt_id,
        task=prompt.task,
        text=prompt.text,
        messages=messages,
        answer=prompt.answer,
        fields=prompt.fields,
    )


def prompt_from_proto(message: pb.Prompt) -> t.Prompt:
    """Message → Prompt. Errors: ValueError when it has both text and messages, or neither."""
    return t.Prompt(
        prompt_id=message.prompt_id,
        task=message.task,
        text=message.text,
        messages=tuple(t.ChatMessage(role=m.role, content=m.content) for m in message.messages),
        answer=message.answer,
        fields=dict(message.fields),
    )


def reward_to_proto(reward: t.Reward) -> pb.Reward:
    """Reward → message."""
    return pb.Reward(
        name=reward.name,
        value=reward.value,
        outcome=OUTCOMES[reward.outcome],
        detail=reward.detail,
        answer=reward.answer,
        steps=[
            pb.StepReward(value=step.value, text_end=step.text_end, token_end=step.token_end)
            for step in reward.steps
        ],
    )


def reward_from_proto(message: pb.Reward) -> t.Reward:
    """Message → Reward. Errors: ValueError for an outcome that is not set."""
    outcome = outcome_from_proto(message.outcome)
    return t.Reward(
        name=message.name,
        value=message.value,
        outcome=outcome,
        detail=message.detail,
        answer=message.answer,
        steps=tuple(
            t.StepReward(value=step.value, text_end=step.text_end, token_end=step.token_end)
            for step in message.steps
        ),
    )


def routed_experts_to_proto(experts: t.RoutedExperts) -> pb.RoutedExperts:
    """RoutedExperts → message."""
    return pb.RoutedExperts(
        tokens=experts.tokens,
        layers=experts.layers,
        top_k=experts.top_k,
        id_bytes=experts.id_bytes,
        ids=experts.ids,
    )


def routed_experts_from_proto(message: pb.RoutedExperts) -> t.RoutedExperts:
    """Message → RoutedExperts. Errors: RoutingMismatch when the ids do not have the stated shape."""
    return t.RoutedExperts(
        tokens=message.tokens,
        layers=message.layers,
        top_k=message.top_k,
        id_bytes=message.id_bytes,
        ids=message.ids,
    )


def teacher_logprobs_to_proto(teacher: t.TeacherLogprobs) -> pb.TeacherLogprobs:
    """TeacherLogprobs → message."""
    return pb.TeacherLogprobs(
        logprobs=teacher.logprobs,
        top_k=teacher.top_k,
        top_ids=teacher.top_ids,
        top_logprobs=teacher.top_logprobs,
    )


def teacher_logprobs_from_proto(message: pb.TeacherLogprobs) -> t.TeacherLogprobs:
    """Message → TeacherLogprobs. Errors: ValueError when the bytes do not have the stated shape."""
    return t.TeacherLogprobs(
        logprobs=message.logprobs,
        top_k=message.top_k,
        top_ids=message.top_ids,
        top_logprobs=message.top_logprobs,
    )


def top_logprobs_to_proto(top: t.TopLogprobs) -> pb.TopLogprobs:
    """TopLogprobs → message."""
    return pb.TopLogprobs(top_k=top.top_k, ids=top.ids, logprobs=top.logprobs)


def top_logprobs_from_proto(message: pb.TopLogprobs) -> t.TopLogprobs:
    """Message → TopLogprobs. Errors: ValueError when the bytes are not whole rows."""
    return t.TopLogprobs(top_k=message.top_k, ids=message.ids, logprobs=message.logprobs)


def spans_to_proto(spans: Iterable[t.VersionSpan]) -> list[pb.VersionSpan]:
    """Version spans → messages."""
    return [pb.VersionSpan(version=span.version, start=span.start, end=span.end) for span in spans]


def spans_from_proto(messages: Iterable[pb.VersionSpan]) -> tuple[t.VersionSpan, ...]:
    """Messages → version spans."""
    return tuple(t.VersionSpan(version=m.version, start=m.start, end=m.end) for m in messages)


def rollout_status_to_proto(status: t.RolloutStatus) -> rollout.RolloutStatus:
    """RolloutStatus → message."""
    return rollout.RolloutStatus(**asdict(status))


def rollout_status_from_proto(message: rollout.RolloutStatus) -> t.RolloutStatus:
    """Message → RolloutStatus."""
    return t.RolloutStatus(
        serving_version=message.serving_version,
        serving=message.serving,
        places=message.places,
        groups_running=message.groups_running,
        kv_cache_usage=message.kv_cache_usage,
        draining=message.draining,
    )


def listed_rollout_to_proto(listed: t.ListedRollout) -> replay.ListedRollout:
    """ListedRollout → message."""
    status = rollout_status_to_proto(listed.status)
    return replay.ListedRollout(worker_id=listed.worker_id, address=listed.address, status=status)


def listed_rollout_from_proto(message: replay.ListedRollout) -> t.ListedRollout:
    """Message → ListedRollout."""
    status = rollout_status_from_proto(message.status)
    return t.ListedRollout(worker_id=message.worker_id, address=message.address, status=status)


def chunk_to_proto(request: int, chunk: t.Chunk) -> rollout.SampleChunk:
    """Chunk of a request → message; a Turn is the last chunk of its request."""
    message = rollout.SampleChunk(
        id=request,
        token_ids=chunk.token_ids,
        logprobs=chunk.logprobs,
        spans=spans_to_proto(chunk.spans),
        top_logprobs=None if chunk.top_logprobs is None else top_logprobs_to_proto(chunk.top_logprobs),
    )
    if isinstance(chunk, t.Turn):
        message.finish_reason = FINISH_REASONS[chunk.finish_reason]
        if chunk.routed_experts is not None:
            message.routed_experts.CopyFrom(routed_experts_to_proto(chunk.routed_experts))
    return message


def chunk_from_proto(message: rollout.SampleChunk) -> t.Chunk:
    """Message → Chunk, or Turn for the last chunk of a request. Errors: ValueError for a malformed field."""
    chunk = t.Chunk(
        token_ids=tuple(message.token_ids),
        logprobs=tuple(message.logprobs),
        spans=spans_from_proto(message.spans),
        top_logprobs=top_logprobs_from_proto(message.top_logprobs)
        if message.HasField("top_logprobs")
        else None,
    )
    if not message.finish_reason:
        return chunk
    return t.Turn(
        token_ids=chunk.token_ids,
        logprobs=chunk.logprobs,
        spans=chunk.spans,
        top_logprobs=chunk.top_logprobs,
        finish_reason=finish_reason_from_proto(message.finish_reason),
        routed_experts=routed_experts_from_proto(message.routed_experts)
        if message.HasField("routed_experts")
        else None,
    )


def completion_to_proto(completion: t.Completion) -> pb.Completion:
    """Completion → message."""
    experts, teacher, top = completion.routed_experts, completion.teacher, completion.top_logprobs
    return pb.Completion(
        token_ids=completion.token_ids,
        logprobs=completion.logprobs,
        mask=bytes(completion.mask),
        spans=spans_to_proto(completion.spans),
        finish_reason=FINISH_REASONS[completion.finish_reason],
        rewards=[reward_to_proto(reward) for reward in completion.rewards],
        text=completion.text,
        routed_experts=None if experts is None else routed_experts_to_proto(experts),
        teacher=None if teacher is None else teacher_logprobs_to_proto(teacher),
        top_logprobs=None if top is None else top_logprobs_to_proto(top),
        engines=completion.engines if completion.engines != 1 else 0,
    )


def completion_from_proto(message: pb.Completion) -> t.Completion:
    """Message → Completion. Errors: ValueError when lengths differ or spans do not tile the tokens."""
    return t.Completion(
        token_ids=tuple(message.token_ids),
        logprobs=tuple(message.logprobs),
        mask=tuple(message.mask),
        spans=spans_from_proto(message.spans),
        finish_reason=finish_reason_from_proto(message.finish_reason),
        rewards=tuple(reward_from_proto(reward) for reward in message.rewards),
        text=message.text,
        routed_experts=routed_experts_from_proto(message.routed_experts)
        if message.HasField("routed_experts")
        else None,
        teacher=teacher_logprobs_from_proto(message.teacher) if message.HasField("teacher") else None,
        top_logprobs=top_logprobs_from_proto(message.top_logprobs)
        if message.HasField("top_logprobs")
        else None,
        engines=message.engines or 1,
    )


def group_to_proto(group: t.Group) -> pb.Group:
    """Group → message."""
    return pb.Group(
        group_id=group.group_id,
        lease_epoch=group.lease_epoch,
        dispatch_index=group.dispatch_index,
        prompt=prompt_to_proto(group.prompt),
        prompt_token_ids=group.prompt_token_ids,
        completions=[completion_to_proto(completion) for completion in group.completions],
        worker_id=group.worker_id,
    )


def group_from_proto(message: pb.Group, *, hand_out: t.HandOut | None = None) -> t.Group:
    """Message → Group, in the batch of this hand-out. Errors: ValueError for a malformed field."""
    return t.Group(
        group_id=message.group_id,
        lease_epoch=message.lease_epoch,
        dispatch_index=message.dispatch_index,
        prompt=prompt_from_proto(message.prompt),
        prompt_token_ids=tuple(message.prompt_token_ids),
        completions=tuple(completion_from_proto(completion) for completion in message.completions),
        worker_id=message.worker_id,
        hand_out=hand_out,
    )


def lease_to_proto(lease: t.Lease) -> replay.Lease:
    """Lease → message."""
    return replay.Lease(
        group_id=lease.group_id,
        lease_epoch=lease.lease_epoch,
        dispatch_index=lease.dispatch_index,
        prompt=prompt_to_proto(lease.prompt),
        group_size=lease.group_size,
        seconds=lease.seconds,
        purpose=PURPOSES[lease.purpose],
    )


def lease_from_proto(message: replay.Lease) -> t.Lease:
    """Message → Lease. Errors: ValueError for a purpose that is not set."""
    return t.Lease(
        group_id=message.group_id,
        lease_epoch=message.lease_epoch,
        dispatch_index=message.dispatch_index,
        prompt=prompt_from_proto(message.prompt),
        group_size=message.group_size,
        seconds=message.seconds,
        purpose=_lookup(_PURPOSE_OF, message.purpose, "Lease.purpose"),
    )


def ledger_to_proto(ledger: t.Ledger) -> replay.Ledger:
    """Ledger → message."""
    return replay.Ledger(**{name: getattr(ledger, name) for name in _LEDGER_FIELDS})


def ledger_from_proto(message: replay.Ledger) -> t.Ledger:
    """Message → Ledger."""
    values = {name: getattr(message, name) for name in _LEDGER_FIELDS}
    by_reason = {name: dict(values[name]) for name in ("filtered", "dropped", "skipped", "retired")}
    return t.Ledger(**{**values, **by_reason})


def activity_to_proto(activity: t.Activity) -> replay.GetActivityResponse:
    """Activity → message."""
    return replay.GetActivityResponse(
        ledger=ledger_to_proto(activity.ledger),
        admission_free=activity.admission_free,
        workers=[
            replay.WorkerActivity(
                worker_id=worker.worker_id,
                kind=WORKER_KINDS[worker.kind],
                silent_seconds=worker.silent_seconds,
                serving_version=worker.serving_version,
                leases=worker.leases,
                scoring_failure=worker.scoring_failure,
            )
            for worker in activity.workers
        ],
        oldest_lease_seconds=activity.oldest_lease_seconds,
        oldest_lease_worker=activity.oldest_lease_worker,
    )


def activity_from_proto(message: replay.GetActivityResponse) -> t.Activity:
    """Message → Activity."""
    workers = (
        t.WorkerActivity(
            worker_id=worker.worker_id,
            kind=_lookup(_WORKER_KIND_OF, worker.kind, f"worker {worker.worker_id}, kind"),
            silent_seconds=worker.silent_seconds,
            serving_version=worker.serving_version,
            leases=worker.leases,
            scoring_failure=worker.scoring_failure,
        )
        for worker in message.workers
    )
    return t.Activity(
        ledger=ledger_from_proto(message.ledger),
        admission_free=message.admission_free,
        workers=tuple(workers),
        oldest_lease_seconds=message.oldest_lease_seconds,
        oldest_lease_worker=message.oldest_lease_worker,
    )


def cursor_to_proto(cursor: t.Cursor) -> replay.Cursor:
    """Cursor → message."""
    return replay.Cursor(dispatched=cursor.dispatched, open=cursor.open)


def cursor_from_proto(message: replay.Cursor) -> t.Cursor:
    """Message → Cursor; an unset message gives the start."""
    return t.Cursor(dispatched=message.dispatched, open=tuple(message.open))


def hand_out_to_proto(hand_out: t.HandOut) -> replay.HandOut:
    """HandOut → message."""
    return replay.HandOut(learner_epoch=hand_out.learner_epoch, number=hand_out.number)


def hand_out_from_proto(message: replay.HandOut) -> t.HandOut:
    """Message → HandOut."""
    return t.HandOut(learner_epoch=message.learner_epoch, number=message.number)


def generated_to_proto(generated: t.Generated) -> replay.Generated:
    """Generated → message."""
    return replay.Generated(
        groups=generated.groups,
        unvaried_groups=generated.unvaried_groups,
        reward_sums=generated.reward_sums,
        reward_counts=generated.reward_counts,
    )


def generated_from_proto(message: replay.Generated) -> t.Generated:
    """Message → Generated."""
    return t.Generated(
        groups=message.groups,
        unvaried_groups=message.unvaried_groups,
        reward_sums=dict(message.reward_sums),
        reward_counts=dict(message.reward_counts),
    )


def finish_reason_from_proto(number: int) -> t.FinishReason:
    """Enum number → FinishReason. Errors: ValueError when it is not set."""
    return _lookup(_FINISH_REASON_OF, number, "finish_reason")


def outcome_from_proto(number: int) -> t.Outcome:
    """Enum number → Outcome. Errors: ValueError when it is not set."""
    return _lookup(_OUTCOME_OF, number, "Reward.outcome")


def insert_outcome_from_proto(number: int) -> t.InsertOutcome:
    """Enum number → InsertOutcome. Errors: ValueError when it is not set."""
    return _lookup(_INSERT_OUTCOME_OF, number, "InsertGroupResponse.outcome")


_LEDGER_FIELDS = tuple(f.name for f in replay.Ledger.DESCRIPTOR.fields)


def _lookup(table: Mapping[int, V], number: int, where: str) -> V:
    if number not in table:
        raise ValueError(f"{where} is {number}, which is not a known value")
    return table[number]
