from slipstream.v1 import rollout_pb2 as _rollout_pb2
from slipstream.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Purpose(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PURPOSE_UNSPECIFIED: _ClassVar[Purpose]
    PURPOSE_TRAINING: _ClassVar[Purpose]
    PURPOSE_EVALUATION: _ClassVar[Purpose]

class InsertOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INSERT_OUTCOME_UNSPECIFIED: _ClassVar[InsertOutcome]
    INSERT_OUTCOME_ACCEPTED: _ClassVar[InsertOutcome]
    INSERT_OUTCOME_DUPLICATE: _ClassVar[InsertOutcome]
    INSERT_OUTCOME_FENCED: _ClassVar[InsertOutcome]
    INSERT_OUTCOME_FILTERED: _ClassVar[InsertOutcome]

class WorkerKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORKER_KIND_UNSPECIFIED: _ClassVar[WorkerKind]
    WORKER_KIND_ACTOR: _ClassVar[WorkerKind]
    WORKER_KIND_ROLLOUT: _ClassVar[WorkerKind]
PURPOSE_UNSPECIFIED: Purpose
PURPOSE_TRAINING: Purpose
PURPOSE_EVALUATION: Purpose
INSERT_OUTCOME_UNSPECIFIED: InsertOutcome
INSERT_OUTCOME_ACCEPTED: InsertOutcome
INSERT_OUTCOME_DUPLICATE: InsertOutcome
INSERT_OUTCOME_FENCED: InsertOutcome
INSERT_OUTCOME_FILTERED: InsertOutcome
WORKER_KIND_UNSPECIFIED: WorkerKind
WORKER_KIND_ACTOR: WorkerKind
WORKER_KIND_ROLLOUT: WorkerKind

class Lease(_message.Message):
    __slots__ = ("group_id", "lease_epoch", "dispatch_index", "prompt", "group_size", "seconds", "purpose", "engines_lost")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    ENGINES_LOST_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    lease_epoch: int
    dispatch_index: int
    prompt: _types_pb2.Prompt
    group_size: int
    seconds: float
    purpose: Purpose
    engines_lost: int
    def __init__(self, group_id: _Optional[str] = ..., lease_epoch: _Optional[int] = ..., dispatch_index: _Optional[int] = ..., prompt: _Optional[_Union[_types_pb2.Prompt, _Mapping]] = ..., group_size: _Optional[int] = ..., seconds: _Optional[float] = ..., purpose: _Optional[_Union[Purpose, str]] = ..., engines_lost: _Optional[int] = ...) -> None: ...

class LeasePromptsRequest(_message.Message):
    __slots__ = ("worker_id", "max_prompts", "wait_seconds", "serving_version", "request_id", "attempt")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPTS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SERVING_VERSION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    max_prompts: int
    wait_seconds: float
    serving_version: int
    request_id: str
    attempt: int
    def __init__(self, worker_id: _Optional[str] = ..., max_prompts: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., serving_version: _Optional[int] = ..., request_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class LeasePromptsResponse(_message.Message):
    __slots__ = ("leases",)
    LEASES_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ...) -> None: ...

class LeaseRef(_message.Message):
    __slots__ = ("group_id", "lease_epoch")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    lease_epoch: int
    def __init__(self, group_id: _Optional[str] = ..., lease_epoch: _Optional[int] = ...) -> None: ...

class RenewLeasesRequest(_message.Message):
    __slots__ = ("worker_id", "leases", "serving_version", "scoring_failure", "throughput")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    SERVING_VERSION_FIELD_NUMBER: _ClassVar[int]
    SCORING_FAILURE_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    leases: _containers.RepeatedCompositeFieldContainer[LeaseRef]
    serving_version: int
    scoring_failure: str
    throughput: float
    def __init__(self, worker_id: _Optional[str] = ..., leases: _Optional[_Iterable[_Union[LeaseRef, _Mapping]]] = ..., serving_version: _Optional[int] = ..., scoring_failure: _Optional[str] = ..., throughput: _Optional[float] = ...) -> None: ...

class RenewLeasesResponse(_message.Message):
    __slots__ = ("lost",)
    LOST_FIELD_NUMBER: _ClassVar[int]
    lost: _containers.RepeatedCompositeFieldContainer[LeaseRef]
    def __init__(self, lost: _Optional[_Iterable[_Union[LeaseRef, _Mapping]]] = ...) -> None: ...

class ReturnPromptsRequest(_message.Message):
    __slots__ = ("worker_id", "leases", "fault", "engines_lost")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    ENGINES_LOST_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    leases: _containers.RepeatedCompositeFieldContainer[LeaseRef]
    fault: str
    engines_lost: int
    def __init__(self, worker_id: _Optional[str] = ..., leases: _Optional[_Iterable[_Union[LeaseRef, _Mapping]]] = ..., fault: _Optional[str] = ..., engines_lost: _Optional[int] = ...) -> None: ...

class ReturnPromptsResponse(_message.Message):
    __slots__ = ("returned",)
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    returned: int
    def __init__(self, returned: _Optional[int] = ...) -> None: ...

class ListedRollout(_message.Message):
    __slots__ = ("worker_id", "address", "status")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    address: str
    status: _rollout_pb2.RolloutStatus
    def __init__(self, worker_id: _Optional[str] = ..., address: _Optional[str] = ..., status: _Optional[_Union[_rollout_pb2.RolloutStatus, _Mapping]] = ...) -> None: ...

class ReportRolloutRequest(_message.Message):
    __slots__ = ("rollout", "throughput")
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    rollout: ListedRollout
    throughput: float
    def __init__(self, rollout: _Optional[_Union[ListedRollout, _Mapping]] = ..., throughput: _Optional[float] = ...) -> None: ...

class ReportRolloutResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRolloutsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRolloutsResponse(_message.Message):
    __slots__ = ("rollouts",)
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    rollouts: _containers.RepeatedCompositeFieldContainer[ListedRollout]
    def __init__(self, rollouts: _Optional[_Iterable[_Union[ListedRollout, _Mapping]]] = ...) -> None: ...

class InsertGroupRequest(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: bytes
    def __init__(self, group: _Optional[bytes] = ...) -> None: ...

class InsertGroupResponse(_message.Message):
    __slots__ = ("outcome", "filter_reason", "detail")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    FILTER_REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    outcome: InsertOutcome
    filter_reason: str
    detail: str
    def __init__(self, outcome: _Optional[_Union[InsertOutcome, str]] = ..., filter_reason: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class HandOut(_message.Message):
    __slots__ = ("learner_epoch", "number")
    LEARNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    learner_epoch: int
    number: int
    def __init__(self, learner_epoch: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class SampleBatchRequest(_message.Message):
    __slots__ = ("groups", "version", "max_staleness", "wait_seconds", "hand_out")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_STALENESS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HAND_OUT_FIELD_NUMBER: _ClassVar[int]
    groups: int
    version: int
    max_staleness: int
    wait_seconds: float
    hand_out: HandOut
    def __init__(self, groups: _Optional[int] = ..., version: _Optional[int] = ..., max_staleness: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., hand_out: _Optional[_Union[HandOut, _Mapping]] = ...) -> None: ...

class SampleBatchResponse(_message.Message):
    __slots__ = ("group",)
    GROUP_FIELD_NUMBER: _ClassVar[int]
    group: bytes
    def __init__(self, group: _Optional[bytes] = ...) -> None: ...

class AckBatchRequest(_message.Message):
    __slots__ = ("group_ids", "version", "hand_out")
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HAND_OUT_FIELD_NUMBER: _ClassVar[int]
    group_ids: _containers.RepeatedScalarFieldContainer[str]
    version: int
    hand_out: HandOut
    def __init__(self, group_ids: _Optional[_Iterable[str]] = ..., version: _Optional[int] = ..., hand_out: _Optional[_Union[HandOut, _Mapping]] = ...) -> None: ...

class AckBatchResponse(_message.Message):
    __slots__ = ("acked", "generated", "cursor", "retrained")
    ACKED_FIELD_NUMBER: _ClassVar[int]
    GENERATED_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    RETRAINED_FIELD_NUMBER: _ClassVar[int]
    acked: int
    generated: Generated
    cursor: Cursor
    retrained: int
    def __init__(self, acked: _Optional[int] = ..., generated: _Optional[_Union[Generated, _Mapping]] = ..., cursor: _Optional[_Union[Cursor, _Mapping]] = ..., retrained: _Optional[int] = ...) -> None: ...

class Cursor(_message.Message):
    __slots__ = ("dispatched", "open")
    DISPATCHED_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    dispatched: int
    open: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dispatched: _Optional[int] = ..., open: _Optional[_Iterable[int]] = ...) -> None: ...

class Generated(_message.Message):
    __slots__ = ("groups", "unvaried_groups", "reward_sums", "reward_counts", "by_source")
    class RewardSumsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class RewardCountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class BySourceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Generated
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Generated, _Mapping]] = ...) -> None: ...
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    UNVARIED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    REWARD_SUMS_FIELD_NUMBER: _ClassVar[int]
    REWARD_COUNTS_FIELD_NUMBER: _ClassVar[int]
    BY_SOURCE_FIELD_NUMBER: _ClassVar[int]
    groups: int
    unvaried_groups: int
    reward_sums: _containers.ScalarMap[str, float]
    reward_counts: _containers.ScalarMap[str, int]
    by_source: _containers.MessageMap[str, Generated]
    def __init__(self, groups: _Optional[int] = ..., unvaried_groups: _Optional[int] = ..., reward_sums: _Optional[_Mapping[str, float]] = ..., reward_counts: _Optional[_Mapping[str, int]] = ..., by_source: _Optional[_Mapping[str, Generated]] = ...) -> None: ...

class ReleaseBatchRequest(_message.Message):
    __slots__ = ("group_ids", "hand_out")
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    HAND_OUT_FIELD_NUMBER: _ClassVar[int]
    group_ids: _containers.RepeatedScalarFieldContainer[str]
    hand_out: HandOut
    def __init__(self, group_ids: _Optional[_Iterable[str]] = ..., hand_out: _Optional[_Union[HandOut, _Mapping]] = ...) -> None: ...

class ReleaseBatchResponse(_message.Message):
    __slots__ = ("released",)
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    released: int
    def __init__(self, released: _Optional[int] = ...) -> None: ...

class DropGroupsRequest(_message.Message):
    __slots__ = ("group_ids", "hand_out", "reason")
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    HAND_OUT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    group_ids: _containers.RepeatedScalarFieldContainer[str]
    hand_out: HandOut
    reason: str
    def __init__(self, group_ids: _Optional[_Iterable[str]] = ..., hand_out: _Optional[_Union[HandOut, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class DropGroupsResponse(_message.Message):
    __slots__ = ("dropped",)
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    dropped: int
    def __init__(self, dropped: _Optional[int] = ...) -> None: ...

class TakeFilteredRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TakeFilteredResponse(_message.Message):
    __slots__ = ("group", "reason", "state")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    group: bytes
    reason: str
    state: str
    def __init__(self, group: _Optional[bytes] = ..., reason: _Optional[str] = ..., state: _Optional[str] = ...) -> None: ...

class TakeEvaluatedRequest(_message.Message):
    __slots__ = ("evaluation_id", "start")
    EVALUATION_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    evaluation_id: str
    start: int
    def __init__(self, evaluation_id: _Optional[str] = ..., start: _Optional[int] = ...) -> None: ...

class TakeEvaluatedResponse(_message.Message):
    __slots__ = ("group", "number")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    group: bytes
    number: int
    def __init__(self, group: _Optional[bytes] = ..., number: _Optional[int] = ...) -> None: ...

class AnnounceVersionRequest(_message.Message):
    __slots__ = ("version", "learner_epoch")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEARNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    version: int
    learner_epoch: int
    def __init__(self, version: _Optional[int] = ..., learner_epoch: _Optional[int] = ...) -> None: ...

class AnnounceVersionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConfirmCheckpointRequest(_message.Message):
    __slots__ = ("version", "learner_epoch")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LEARNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    version: int
    learner_epoch: int
    def __init__(self, version: _Optional[int] = ..., learner_epoch: _Optional[int] = ...) -> None: ...

class ConfirmCheckpointResponse(_message.Message):
    __slots__ = ("freed",)
    FREED_FIELD_NUMBER: _ClassVar[int]
    freed: int
    def __init__(self, freed: _Optional[int] = ...) -> None: ...

class AttachLearnerRequest(_message.Message):
    __slots__ = ("version", "cursor", "learner_id")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LEARNER_ID_FIELD_NUMBER: _ClassVar[int]
    version: int
    cursor: Cursor
    learner_id: str
    def __init__(self, version: _Optional[int] = ..., cursor: _Optional[_Union[Cursor, _Mapping]] = ..., learner_id: _Optional[str] = ...) -> None: ...

class AttachLearnerResponse(_message.Message):
    __slots__ = ("released", "restored", "learner_epoch")
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    RESTORED_FIELD_NUMBER: _ClassVar[int]
    LEARNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    released: int
    restored: int
    learner_epoch: int
    def __init__(self, released: _Optional[int] = ..., restored: _Optional[int] = ..., learner_epoch: _Optional[int] = ...) -> None: ...

class StartEvaluationRequest(_message.Message):
    __slots__ = ("version", "prompts", "samples_per_prompt", "reward", "learner_epoch", "request_id")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_PROMPT_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    LEARNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    version: int
    prompts: int
    samples_per_prompt: int
    reward: str
    learner_epoch: int
    request_id: str
    def __init__(self, version: _Optional[int] = ..., prompts: _Optional[int] = ..., samples_per_prompt: _Optional[int] = ..., reward: _Optional[str] = ..., learner_epoch: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class StartEvaluationResponse(_message.Message):
    __slots__ = ("evaluation_id",)
    EVALUATION_ID_FIELD_NUMBER: _ClassVar[int]
    evaluation_id: str
    def __init__(self, evaluation_id: _Optional[str] = ...) -> None: ...

class GetEvaluationRequest(_message.Message):
    __slots__ = ("evaluation_id",)
    EVALUATION_ID_FIELD_NUMBER: _ClassVar[int]
    evaluation_id: str
    def __init__(self, evaluation_id: _Optional[str] = ...) -> None: ...

class GetEvaluationResponse(_message.Message):
    __slots__ = ("done", "version", "completions", "errors", "accuracy", "mean_version", "best_of_n", "majority", "by_source")
    class BySourceEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: SourceAccuracy
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[SourceAccuracy, _Mapping]] = ...) -> None: ...
    DONE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMPLETIONS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    MEAN_VERSION_FIELD_NUMBER: _ClassVar[int]
    BEST_OF_N_FIELD_NUMBER: _ClassVar[int]
    MAJORITY_FIELD_NUMBER: _ClassVar[int]
    BY_SOURCE_FIELD_NUMBER: _ClassVar[int]
    done: bool
    version: int
    completions: int
    errors: int
    accuracy: float
    mean_version: float
    best_of_n: float
    majority: float
    by_source: _containers.MessageMap[str, SourceAccuracy]
    def __init__(self, done: bool = ..., version: _Optional[int] = ..., completions: _Optional[int] = ..., errors: _Optional[int] = ..., accuracy: _Optional[float] = ..., mean_version: _Optional[float] = ..., best_of_n: _Optional[float] = ..., majority: _Optional[float] = ..., by_source: _Optional[_Mapping[str, SourceAccuracy]] = ...) -> None: ...

class SourceAccuracy(_message.Message):
    __slots__ = ("completions", "errors", "accuracy")
    COMPLETIONS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    completions: int
    errors: int
    accuracy: float
    def __init__(self, completions: _Optional[int] = ..., errors: _Optional[int] = ..., accuracy: _Optional[float] = ...) -> None: ...

class Ledger(_message.Message):
    __slots__ = ("leased", "inserted", "returned", "expired", "running", "trained", "filtered", "dropped", "buffered", "in_flight", "tokens_inserted", "tokens_trained", "fenced", "duplicates", "withheld", "skipped", "refills_exhausted", "retrained", "retired")
    class FilteredEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class DroppedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class SkippedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class RetiredEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    LEASED_FIELD_NUMBER: _ClassVar[int]
    INSERTED_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    FILTERED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_INSERTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_TRAINED_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    WITHHELD_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    REFILLS_EXHAUSTED_FIELD_NUMBER: _ClassVar[int]
    RETRAINED_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    leased: int
    inserted: int
    returned: int
    expired: int
    running: int
    trained: int
    filtered: _containers.ScalarMap[str, int]
    dropped: _containers.ScalarMap[str, int]
    buffered: int
    in_flight: int
    tokens_inserted: int
    tokens_trained: int
    fenced: int
    duplicates: int
    withheld: int
    skipped: _containers.ScalarMap[str, int]
    refills_exhausted: int
    retrained: int
    retired: _containers.ScalarMap[str, int]
    def __init__(self, leased: _Optional[int] = ..., inserted: _Optional[int] = ..., returned: _Optional[int] = ..., expired: _Optional[int] = ..., running: _Optional[int] = ..., trained: _Optional[int] = ..., filtered: _Optional[_Mapping[str, int]] = ..., dropped: _Optional[_Mapping[str, int]] = ..., buffered: _Optional[int] = ..., in_flight: _Optional[int] = ..., tokens_inserted: _Optional[int] = ..., tokens_trained: _Optional[int] = ..., fenced: _Optional[int] = ..., duplicates: _Optional[int] = ..., withheld: _Optional[int] = ..., skipped: _Optional[_Mapping[str, int]] = ..., refills_exhausted: _Optional[int] = ..., retrained: _Optional[int] = ..., retired: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Admission(_message.Message):
    __slots__ = ("paused", "seconds", "since", "by", "reason")
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    paused: bool
    seconds: float
    since: float
    by: str
    reason: str
    def __init__(self, paused: bool = ..., seconds: _Optional[float] = ..., since: _Optional[float] = ..., by: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class SetAdmissionRequest(_message.Message):
    __slots__ = ("paused", "reason", "by")
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    paused: bool
    reason: str
    by: str
    def __init__(self, paused: bool = ..., reason: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class SetAdmissionResponse(_message.Message):
    __slots__ = ("admission", "changed")
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    admission: Admission
    changed: bool
    def __init__(self, admission: _Optional[_Union[Admission, _Mapping]] = ..., changed: bool = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("ledger", "version", "admission_free", "residual", "kept", "admission")
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FREE_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    ledger: Ledger
    version: int
    admission_free: int
    residual: int
    kept: int
    admission: Admission
    def __init__(self, ledger: _Optional[_Union[Ledger, _Mapping]] = ..., version: _Optional[int] = ..., admission_free: _Optional[int] = ..., residual: _Optional[int] = ..., kept: _Optional[int] = ..., admission: _Optional[_Union[Admission, _Mapping]] = ...) -> None: ...

class GetActivityRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerActivity(_message.Message):
    __slots__ = ("worker_id", "silent_seconds", "serving_version", "leases", "scoring_failure", "kind", "throughput")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SILENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SERVING_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    SCORING_FAILURE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    THROUGHPUT_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    silent_seconds: float
    serving_version: int
    leases: int
    scoring_failure: str
    kind: WorkerKind
    throughput: float
    def __init__(self, worker_id: _Optional[str] = ..., silent_seconds: _Optional[float] = ..., serving_version: _Optional[int] = ..., leases: _Optional[int] = ..., scoring_failure: _Optional[str] = ..., kind: _Optional[_Union[WorkerKind, str]] = ..., throughput: _Optional[float] = ...) -> None: ...

class GetActivityResponse(_message.Message):
    __slots__ = ("ledger", "admission_free", "workers", "oldest_lease_seconds", "oldest_lease_worker", "admission")
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FREE_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_LEASE_WORKER_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    ledger: Ledger
    admission_free: int
    workers: _containers.RepeatedCompositeFieldContainer[WorkerActivity]
    oldest_lease_seconds: float
    oldest_lease_worker: str
    admission: Admission
    def __init__(self, ledger: _Optional[_Union[Ledger, _Mapping]] = ..., admission_free: _Optional[int] = ..., workers: _Optional[_Iterable[_Union[WorkerActivity, _Mapping]]] = ..., oldest_lease_seconds: _Optional[float] = ..., oldest_lease_worker: _Optional[str] = ..., admission: _Optional[_Union[Admission, _Mapping]] = ...) -> None: ...
