from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerMessage(_message.Message):
    __slots__ = ("join", "ready", "applied", "serving", "failed", "leave", "pong")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    join: JoinFleet
    ready: Ready
    applied: Applied
    serving: Serving
    failed: Failed
    leave: Leave
    pong: Pong
    def __init__(self, join: _Optional[_Union[JoinFleet, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., applied: _Optional[_Union[Applied, _Mapping]] = ..., serving: _Optional[_Union[Serving, _Mapping]] = ..., failed: _Optional[_Union[Failed, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ...) -> None: ...

class JoinFleet(_message.Message):
    __slots__ = ("worker_id", "model_fingerprint", "backend", "ranks", "serving_version", "nccl_version", "answers_pings")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    SERVING_VERSION_FIELD_NUMBER: _ClassVar[int]
    NCCL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_PINGS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    model_fingerprint: str
    backend: str
    ranks: int
    serving_version: int
    nccl_version: str
    answers_pings: bool
    def __init__(self, worker_id: _Optional[str] = ..., model_fingerprint: _Optional[str] = ..., backend: _Optional[str] = ..., ranks: _Optional[int] = ..., serving_version: _Optional[int] = ..., nccl_version: _Optional[str] = ..., answers_pings: bool = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("epoch", "version", "base_version")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    base_version: int
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ..., base_version: _Optional[int] = ...) -> None: ...

class Applied(_message.Message):
    __slots__ = ("epoch", "version", "receive_seconds")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    receive_seconds: float
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ..., receive_seconds: _Optional[float] = ...) -> None: ...

class Serving(_message.Message):
    __slots__ = ("version", "pause_seconds")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PAUSE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    version: int
    pause_seconds: float
    def __init__(self, version: _Optional[int] = ..., pause_seconds: _Optional[float] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("epoch", "version", "reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class LearnerMessage(_message.Message):
    __slots__ = ("prepare", "begin", "commit", "abort", "finish", "ping")
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    prepare: Prepare
    begin: Begin
    commit: Commit
    abort: Abort
    finish: Finish
    ping: Ping
    def __init__(self, prepare: _Optional[_Union[Prepare, _Mapping]] = ..., begin: _Optional[_Union[Begin, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., abort: _Optional[_Union[Abort, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("name", "dtype", "shape", "bucket", "offset", "part")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    BUCKET_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    bucket: int
    offset: int
    part: TensorPart
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., bucket: _Optional[int] = ..., offset: _Optional[int] = ..., part: _Optional[_Union[TensorPart, _Mapping]] = ...) -> None: ...

class TensorPart(_message.Message):
    __slots__ = ("tensor", "first_row", "rows")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    tensor: str
    first_row: int
    rows: int
    def __init__(self, tensor: _Optional[str] = ..., first_row: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("tensors", "bucket_bytes", "model_fingerprint", "bucket_senders")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    BUCKET_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BUCKET_SENDERS_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    bucket_bytes: _containers.RepeatedScalarFieldContainer[int]
    model_fingerprint: str
    bucket_senders: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tensors: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., bucket_bytes: _Optional[_Iterable[int]] = ..., model_fingerprint: _Optional[str] = ..., bucket_senders: _Optional[_Iterable[int]] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("epoch", "version", "rank", "world_size", "store_host", "store_port", "timeout_seconds", "rendezvous_nonce", "sender", "senders")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    STORE_HOST_FIELD_NUMBER: _ClassVar[int]
    STORE_PORT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_NONCE_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SENDERS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    rank: int
    world_size: int
    store_host: str
    store_port: int
    timeout_seconds: float
    rendezvous_nonce: bytes
    sender: bytes
    senders: int
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., store_host: _Optional[str] = ..., store_port: _Optional[int] = ..., timeout_seconds: _Optional[float] = ..., rendezvous_nonce: _Optional[bytes] = ..., sender: _Optional[bytes] = ..., senders: _Optional[int] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("epoch", "version", "manifest", "base_version", "key")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    manifest: Manifest
    base_version: int
    key: bytes
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ..., manifest: _Optional[_Union[Manifest, _Mapping]] = ..., base_version: _Optional[int] = ..., key: _Optional[bytes] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("version", "probe")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    version: int
    probe: ParityProbe
    def __init__(self, version: _Optional[int] = ..., probe: _Optional[_Union[ParityProbe, _Mapping]] = ...) -> None: ...

class ParityProbe(_message.Message):
    __slots__ = ("token_ids", "logprobs")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("epoch", "reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Finish(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FleetMember(_message.Message):
    __slots__ = ("worker_id", "version")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    version: int
    def __init__(self, worker_id: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class GetPolicyResponse(_message.Message):
    __slots__ = ("version", "epoch", "members")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    version: int
    epoch: int
    members: _containers.RepeatedCompositeFieldContainer[FleetMember]
    def __init__(self, version: _Optional[int] = ..., epoch: _Optional[int] = ..., members: _Optional[_Iterable[_Union[FleetMember, _Mapping]]] = ...) -> None: ...

class SaveCheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SaveCheckpointResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class RankCommand(_message.Message):
    __slots__ = ("train", "snapshot", "save", "settle", "finish")
    TRAIN_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    train: TrainBatch
    snapshot: TakeSnapshot
    save: SaveCheckpoint
    settle: SettleCheckpoint
    finish: Finish
    def __init__(self, train: _Optional[_Union[TrainBatch, _Mapping]] = ..., snapshot: _Optional[_Union[TakeSnapshot, _Mapping]] = ..., save: _Optional[_Union[SaveCheckpoint, _Mapping]] = ..., settle: _Optional[_Union[SettleCheckpoint, _Mapping]] = ..., finish: _Optional[_Union[Finish, _Mapping]] = ...) -> None: ...

class TrainBatch(_message.Message):
    __slots__ = ("version", "unvaried_share")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UNVARIED_SHARE_FIELD_NUMBER: _ClassVar[int]
    version: int
    unvaried_share: float
    def __init__(self, version: _Optional[int] = ..., unvaried_share: _Optional[float] = ...) -> None: ...

class TakeSnapshot(_message.Message):
    __slots__ = ("probe",)
    PROBE_FIELD_NUMBER: _ClassVar[int]
    probe: bool
    def __init__(self, probe: bool = ...) -> None: ...

class SaveCheckpoint(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class SettleCheckpoint(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SenderCommand(_message.Message):
    __slots__ = ("copies", "lay_out", "close", "choose", "form", "send")
    COPIES_FIELD_NUMBER: _ClassVar[int]
    LAY_OUT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    CHOOSE_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    SEND_FIELD_NUMBER: _ClassVar[int]
    copies: int
    lay_out: LayOut
    close: CloseVersion
    choose: ChooseBase
    form: Prepare
    send: SendWeights
    def __init__(self, copies: _Optional[int] = ..., lay_out: _Optional[_Union[LayOut, _Mapping]] = ..., close: _Optional[_Union[CloseVersion, _Mapping]] = ..., choose: _Optional[_Union[ChooseBase, _Mapping]] = ..., form: _Optional[_Union[Prepare, _Mapping]] = ..., send: _Optional[_Union[SendWeights, _Mapping]] = ...) -> None: ...

class LayOut(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseVersion(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class ChooseBase(_message.Message):
    __slots__ = ("base_version",)
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    base_version: int
    def __init__(self, base_version: _Optional[int] = ...) -> None: ...

class SendWeights(_message.Message):
    __slots__ = ("version", "delta", "key", "first_bucket")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    FIRST_BUCKET_FIELD_NUMBER: _ClassVar[int]
    version: int
    delta: bool
    key: bytes
    first_bucket: int
    def __init__(self, version: _Optional[int] = ..., delta: bool = ..., key: _Optional[bytes] = ..., first_bucket: _Optional[int] = ...) -> None: ...

class SenderReport(_message.Message):
    __slots__ = ("failure", "manifest", "changed", "elements", "fault")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    FAULT_FIELD_NUMBER: _ClassVar[int]
    failure: str
    manifest: Manifest
    changed: float
    elements: int
    fault: str
    def __init__(self, failure: _Optional[str] = ..., manifest: _Optional[_Union[Manifest, _Mapping]] = ..., changed: _Optional[float] = ..., elements: _Optional[int] = ..., fault: _Optional[str] = ...) -> None: ...
