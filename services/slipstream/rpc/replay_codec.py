"""Conversion between the values of slipstream.records and the messages of replay.proto."""

from collections.abc import Mapping

from slipstream import records as t
from slipstream.rpc import codec, sampling_codec
from slipstream.v1 import replay_pb2 as pb

PURPOSES = {
    t.Purpose.TRAINING: pb.PURPOSE_TRAINING,
    t.Purpose.EVALUATION: pb.PURPOSE_EVALUATION,
}
INSERT_OUTCOMES = {
    t.InsertOutcome.ACCEPTED: pb.INSERT_OUTCOME_ACCEPTED,
    t.InsertOutcome.DUPLICATE: pb.INSERT_OUTCOME_DUPLICATE,
    t.InsertOutcome.FENCED: pb.INSERT_OUTCOME_FENCED,
    t.InsertOutcome.FILTERED: pb.INSERT_OUTCOME_FILTERED,
}
WORKER_KINDS = {
    t.WorkerKind.ACTOR: pb.WORKER_KIND_ACTOR,
    t.WorkerKind.ROLLOUT: pb.WORKER_KIND_ROLLOUT,
}
_PURPOSE_OF: dict[int, t.Purpose] = {number: value for value, number in PURPOSES.items()}
_INSERT_OUTCOME_OF: dict[int, t.InsertOutcome] = {number: value for value, number in INSERT_OUTCOMES.items()}
_WORKER_KIND_OF: dict[int, t.WorkerKind] = {number: value for value, number in WORKER_KINDS.items()}
_LEDGER_FIELDS = tuple(f.name for f in pb.Ledger.DESCRIPTOR.fields)


def listed_rollout_to_proto(listed: t.ListedRollout) -> pb.ListedRollout:
    """ListedRollout → message."""
    status = sampling_codec.rollout_status_to_proto(listed.status)
    return pb.ListedRollout(worker_id=listed.worker_id, address=listed.address, status=status)


def listed_rollout_from_proto(message: pb.ListedRollout) -> t.ListedRollout:
    """Message → ListedRollout."""
    status = sampling_codec.rollout_status_from_proto(message.status)
    return t.ListedRollout(worker_id=message.worker_id, address=message.address, status=status)


def lease_to_proto(lease: t.Lease) -> pb.Lease:
    """Lease → message."""
    return pb.Lease(
        group_id=lease.group_id,
        lease_epoch=lease.lease_epoch,
        dispatch_index=lease.dispatch_index,
        prompt=codec.prompt_to_proto(lease.prompt),
        group_size=lease.group_size,
        seconds=lease.seconds,
        purpose=PURPOSES[lease.purpose],
        engines_lost=lease.engines_lost,
    )


def lease_from_proto(message: pb.Lease) -> t.Lease:
    """Message → Lease. Errors: ValueError for a purpose that is not set."""
    return t.Lease(
        group_id=message.group_id,
        lease_epoch=message.lease_epoch,
        dispatch_index=message.dispatch_index,
        prompt=codec.prompt_from_proto(message.prompt),
        group_size=message.group_size,
        seconds=message.seconds,
        purpose=codec.value_of(_PURPOSE_OF, message.purpose, "Lease.purpose"),
        engines_lost=message.engines_lost,
    )


def ledger_to_proto(ledger: t.Ledger) -> pb.Ledger:
    """Ledger → message."""
    return pb.Ledger(**{name: getattr(ledger, name) for name in _LEDGER_FIELDS})


def ledger_from_proto(message: pb.Ledger) -> t.Ledger:
    """Message → Ledger."""
    values = {name: getattr(message, name) for name in _LEDGER_FIELDS}
    by_reason = {name: dict(values[name]) for name in ("filtered", "dropped", "skipped", "retired")}
    return t.Ledger(**{**values, **by_reason})


def admission_to_proto(admission: t.Admission) -> pb.Admission:
    """Admission → message."""
    return pb.Admission(
        paused=admission.paused,
        seconds=admission.seconds,
        since=admission.since,
        by=admission.by,
        reason=admission.reason,
    )


def admission_from_proto(message: pb.Admission) -> t.Admission:
    """Message → Admission; an unset message is that of an admission that nobody has paused."""
    return t.Admission(
        paused=message.paused,
        seconds=message.seconds if message.HasField("seconds") else None,
        since=message.since if message.HasField("since") else None,
        by=message.by,
        reason=message.reason,
    )


def activity_to_proto(activity: t.Activity) -> pb.GetActivityResponse:
    """Activity → message."""
    return pb.GetActivityResponse(
        ledger=ledger_to_proto(activity.ledger),
        admission_free=activity.admission_free,
        admission=admission_to_proto(activity.admission),
        workers=[
            pb.WorkerActivity(
                worker_id=worker.worker_id,
                kind=WORKER_KINDS[worker.kind],
                silent_seconds=worker.silent_seconds,
                serving_version=worker.serving_version,
                leases=worker.leases,
                scoring_failure=worker.scoring_failure,
                throughput=worker.throughput,
            )
            for worker in activity.workers
        ],
        oldest_lease_seconds=activity.oldest_lease_seconds,
        oldest_lease_worker=activity.oldest_lease_worker,
    )


def activity_from_proto(message: pb.GetActivityResponse) -> t.Activity:
    """Message → Activity."""
    workers = (
        t.WorkerActivity(
            worker_id=worker.worker_id,
            kind=codec.value_of(_WORKER_KIND_OF, worker.kind, f"worker {worker.worker_id}, kind"),
            silent_seconds=worker.silent_seconds,
            serving_version=worker.serving_version,
            leases=worker.leases,
            scoring_failure=worker.scoring_failure,
            throughput=worker.throughput if worker.HasField("throughput") else None,
        )
        for worker in message.workers
    )
    return t.Activity(
        ledger=ledger_from_proto(message.ledger),
        admission_free=message.admission_free,
        admission=admission_from_proto(message.admission),
        workers=tuple(workers),
        oldest_lease_seconds=message.oldest_lease_seconds,
        oldest_lease_worker=message.oldest_lease_worker,
    )


def cursor_to_proto(cursor: t.Cursor) -> pb.Cursor:
    """Cursor → message."""
    return pb.Cursor(dispatched=cursor.dispatched, open=cursor.open)


def cursor_from_proto(message: pb.Cursor) -> t.Cursor:
    """Message → Cursor; an unset message gives the start."""
    return t.Cursor(dispatched=message.dispatched, open=tuple(message.open))


def hand_out_to_proto(hand_out: t.HandOut) -> pb.HandOut:
    """HandOut → message."""
    return pb.HandOut(learner_epoch=hand_out.learner_epoch, number=hand_out.number)


def hand_out_from_proto(message: pb.HandOut) -> t.HandOut:
    """Message → HandOut."""
    return t.HandOut(learner_epoch=message.learner_epoch, number=message.number)


def generated_to_proto(generated: t.Generated) -> pb.Generated:
    """Generated → message."""
    return pb.Generated(
        groups=generated.groups,
        unvaried_groups=generated.unvaried_groups,
        reward_sums=generated.reward_sums,
        reward_counts=generated.reward_counts,
        by_source={name: generated_to_proto(part) for name, part in generated.by_source.items()},
    )


def generated_from_proto(message: pb.Generated) -> t.Generated:
    """Message → Generated."""
    return t.Generated(
        groups=message.groups,
        unvaried_groups=message.unvaried_groups,
        reward_sums=dict(message.reward_sums),
        reward_counts=dict(message.reward_counts),
        by_source={name: generated_from_proto(part) for name, part in message.by_source.items()},
    )


def accuracies_to_proto(by_source: Mapping[str, t.SourceAccuracy]) -> dict[str, pb.SourceAccuracy]:
    """Accuracies by source → messages."""
    return {
        name: pb.SourceAccuracy(completions=part.completions, errors=part.errors, accuracy=part.accuracy)
        for name, part in by_source.items()
    }


def accuracies_from_proto(messages: Mapping[str, pb.SourceAccuracy]) -> dict[str, t.SourceAccuracy]:
    """Messages → accuracies by source."""
    return {
        name: t.SourceAccuracy(
            completions=part.completions,
            errors=part.errors,
            accuracy=part.accuracy if part.HasField("accuracy") else None,
        )
        for name, part in messages.items()
    }


def insert_outcome_from_proto(number: int) -> t.InsertOutcome:
    """Enum number → InsertOutcome. Errors: ValueError when it is not set."""
    return codec.value_of(_INSERT_OUTCOME_OF, number, "InsertGroupResponse.outcome")
