"""What the store takes and returns: limits, lease requests, slots, and the results of its calls."""

from dataclasses import dataclass

from slipstream.algorithms.spec import Shaping
from slipstream.records import Cursor, Generated, InsertOutcome, Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A lease without its prompt.

    `index` is the dispatch index, or the index of the held-out prompt in an evaluation. `decided` is true if
    the curriculum has admitted the prompt before, with this group size. `engines_lost`: engines that the
    prompt ended under earlier leases.
    """

    group_id: str
    epoch: int
    index: int
    size: int
    decided: bool
    engines_lost: int = 0

    @property
    def purpose(self) -> Purpose:
        """Training or evaluation, by the group id."""
        return purpose_of(self.group_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """An actor's request for at most `max_prompts` leases.

    If the response to an attempt was lost, a later attempt with the same request id gets the same leases
    again. Without a request id each call leases further prompts.
    """

    worker: str
    max_prompts: int
    serving_version: int
    request_id: str = ""
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """A prompt that is never leased again; `worker` held the last lease, which ended by `fault`."""

    group_id: str
    index: int
    worker: str
    fault: str

    @property
    def purpose(self) -> Purpose:
        """Training or evaluation, by the group id."""
        return purpose_of(self.group_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """The result of a sweep: expired leases, leases that were extended, and prompts retired since the last
    sweep.

    Leases are extended when no heartbeat could have arrived, because replay or Redis was stopped.
    """

    expired: int
    renewed: int
    retired: tuple[Retired, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inserted:
    """The outcome of an insert: `reason` if the group was filtered, and `detail` if it was invalid."""

    outcome: InsertOutcome
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """The result of attaching a learner: its learner epoch, and the groups that are in the buffer again.

    `released` groups were in flight. `restored` groups were trained on by steps that were lost.
    """

    released: int
    restored: int
    learner_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked:
    """The result of an acknowledgement.

    `acked`: groups that were in flight. `retrained`: groups that the step trained on although its hand-out
    did not hold them any more. `generated`: completions since the previous step. `cursor`: position in the
    data.
    """

    acked: int
    retrained: int
    generated: Generated
    cursor: Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The settings of a run that the scripts need."""

    group_size: int
    lease_seconds: float
    pipeline_depth: int
    groups_per_step: int
    shaping: Shaping
    stores_completions: bool = True
    """Whether the learner stores groups that it does not train on."""


def purpose_of(group_id: str) -> Purpose:
    """Return whether a group belongs to training or to an evaluation, by its id."""
    return Purpose.EVALUATION if group_id.startswith("e") else Purpose.TRAINING
