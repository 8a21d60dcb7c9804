"""A group, the completions of one prompt, and the lease under which a worker samples it."""

from dataclasses import dataclass
from enum import Enum

from slipstream.records.completion import Completion
from slipstream.records.prompt import Prompt
from slipstream.records.routed_experts import RoutingMismatch


class Purpose(Enum):
    """What a leased prompt is for."""

    TRAINING = "training"
    EVALUATION = "evaluation"


class InsertOutcome(Enum):
    """What became of an inserted group."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    FENCED = "fenced"
    FILTERED = "filtered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to work on a prompt for `seconds`."""

    group_id: str
    lease_epoch: int
    dispatch_index: int
    prompt: Prompt
    group_size: int
    seconds: float
    purpose: Purpose = Purpose.TRAINING


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOut:
    """One handing out of a batch to a learner; a group belongs to its newest one.

    `learner_epoch` counts the learners that have attached, `number` the calls of one for a batch, from 1.
    """

    learner_epoch: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The completions of one prompt: the unit of leasing, insertion and sampling.

    Errors: RoutingMismatch when a completion knows the experts of more tokens than there are.
    """

    group_id: str
    lease_epoch: int
    dispatch_index: int
    prompt: Prompt
    prompt_token_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    worker_id: str = ""
    hand_out: HandOut | None = None
    """What gave it to the learner; None anywhere else."""

    def __post_init__(self) -> None:
        for completion in self.completions:
            tokens = len(self.prompt_token_ids) + len(completion.token_ids)
            experts = completion.routed_experts
            if experts is not None and experts.tokens > tokens:
                raise RoutingMismatch(
                    f"group {self.group_id}: routed experts of {experts.tokens} tokens, and prompt and "
                    f"completion have {tokens}"
                )

    @property
    def newest_version(self) -> int:
        """The highest policy version that sampled a token of the group; 0 for a group without tokens."""
        return max((span.version for c in self.completions for span in c.spans), default=0)

    @property
    def tokens(self) -> int:
        """Tokens of all completions."""
        return sum(len(c.token_ids) for c in self.completions)
