"""A group, the completions of one prompt; its lease, its delivery to a learner, and the times of its phases.

The times of phases are in seconds since 1970.
"""

from dataclasses import dataclass
from enum import Enum

from slipstream.records.completion import Completion, Segment
from slipstream.records.prompt import Prompt
from slipstream.records.routed_experts import RoutingMismatch


class Purpose(Enum):
    """The use of a leased prompt."""

    TRAINING = "training"
    EVALUATION = "evaluation"


class InsertOutcome(Enum):
    """The result of the insertion of a group."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    FENCED = "fenced"
    FILTERED = "filtered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """An actor's lease of a prompt: `seconds` to insert its group, renewed by heartbeats."""

    group_id: str
    lease_epoch: int
    dispatch_index: int
    prompt: Prompt
    group_size: int
    seconds: float
    purpose: Purpose = Purpose.TRAINING
    engines_lost: int = 0
    """Engines that the prompt ended under earlier leases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOut:
    """One delivery of a batch to a learner; a group belongs to its newest delivery.

    `learner_epoch` counts the learners that have attached; `number` counts a learner's requests for a batch,
    from 1.
    """

    learner_epoch: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTime:
    """The first tokens that a group got from a rollout."""

    rollout: str
    first_token: float
    """When they arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimes:
    """The phases of a group in its actor, by the clock of the actor."""

    leased: float
    """The actor received the lease."""
    placed: float
    """The group got a place at a rollout."""
    rollouts: tuple[RolloutTime, ...] = ()
    """The rollouts that sampled it, one after the other; none if no token was sampled."""
    sampled: float
    """Its last completion was sampled."""
    scored: float
    """Its last completion was scored."""
    inserted: float
    """The actor sent it to replay for the first time."""

    @property
    def first_token(self) -> float | None:
        """When its first token arrived; None if no token was sampled."""
        return self.rollouts[0].first_token if self.rollouts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The phases of a batch in the learner, by the clock of the learner."""

    training: float
    """Its step began."""
    trained: float
    """Its step ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The completions of one prompt: the unit of leasing, insertion and sampling.

    Errors: RoutingMismatch when a completion has experts for more tokens than prompt and completion have.
    """

    group_id: str
    lease_epoch: int
    dispatch_index: int
    prompt: Prompt
    prompt_token_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    worker_id: str = ""
    times: GroupTimes | None = None
    """When its phases began and ended; None from an actor of an older release."""
    hand_out: HandOut | None = None
    """The delivery that gave the group to the learner; None outside of the learner."""
    taken: float | None = None
    """When the learner received it, in seconds since 1970; None outside of the learner."""

    def __post_init__(self) -> None:
        for segment in self.segments:
            tokens = len(self.prompt_of(segment)) + len(segment.token_ids)
            experts = segment.routed_experts
            if experts is not None and experts.tokens > tokens:
                raise RoutingMismatch(
                    f"group {self.group_id}: routed experts of {experts.tokens} tokens, and prompt and "
                    f"completion have {tokens}"
                )

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of all completions, in order."""
        return tuple(segment for completion in self.completions for segment in completion.segments)

    @property
    def may_train(self) -> tuple[Segment, ...]:
        """The segments with sampled tokens of the completions that are not withheld, in order."""
        return tuple(
            segment
            for completion in self.completions
            for segment in completion.segments
            if not completion.withheld and any(segment.mask)
        )

    @property
    def newest_version(self) -> int:
        """The highest policy version that sampled a token of the group; 0 for a group without tokens."""
        return max((span.version for segment in self.segments for span in segment.spans), default=0)

    @property
    def tokens(self) -> int:
        """Number of tokens of all completions."""
        return sum(len(segment.token_ids) for segment in self.segments)

    def prompt_of(self, segment: Segment) -> tuple[int, ...]:
        """Return the prompt that the engine saw before a segment."""
        own = segment.prompt_token_ids
        return self.prompt_token_ids if own is None else own
