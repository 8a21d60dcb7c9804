"""What every room speaks: the frozen values that cross from one room to another."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class FinishReason(Enum):
    """Why a completion ended."""

    STOP = "stop"
    LENGTH = "length"


class Outcome(Enum):
    """What a reward function said: a score, an invalid answer, or nothing at all (invariant 11)."""

    SCORE = "score"
    INVALID_ANSWER = "invalid_answer"
    ERROR = "error"


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
class ChatMessage:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One question, as plain text or as messages (never both), and what judges an answer to it."""

    prompt_id: str
    task: str
    answer: str
    text: str = ""
    messages: tuple[ChatMessage, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.text) == bool(self.messages):
            raise ValueError(f"prompt {self.prompt_id}: needs either text or messages, and not both")


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Tokens [start, end) of a completion were sampled by policy version `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """One named component of a reward vector; `value` means nothing when `outcome` is ERROR."""

    name: str
    value: float
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled answer. `logprobs` (nats), `mask` and the spans run parallel to `token_ids`.

    Invariant: the spans tile [0, len(token_ids)), and mask is 1 exactly where the policy sampled.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    mask: tuple[int, ...]
    spans: tuple[VersionSpan, ...]
    finish_reason: FinishReason
    text: str = ""
    rewards: tuple[Reward, ...] = ()

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.logprobs), len(self.mask)}
        if len(lengths) != 1:
            raise ValueError(
                f"completion: token_ids, logprobs and mask must be equally long, "
                f"got {len(self.token_ids)}, {len(self.logprobs)}, {len(self.mask)}"
            )
        position = 0
        for span in self.spans:
            if span.start != position or span.end <= span.start:
                raise ValueError(f"completion: spans must tile its tokens, got {self.spans}")
            position = span.end
        if position != len(self.token_ids):
            raise ValueError(
                f"completion: spans end at {position}, but there are {len(self.token_ids)} tokens"
            )

    @property
    def withheld(self) -> bool:
        """True when the infrastructure failed to score it: no baseline and no gradient may use it."""
        return any(reward.outcome is Outcome.ERROR for reward in self.rewards)


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
class Group:
    """The completions of one prompt: the unit of leasing, insertion and sampling."""

    group_id: str
    lease_epoch: int
    dispatch_index: int
    prompt: Prompt
    prompt_token_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    worker_id: str = ""

    @property
    def newest_version(self) -> int:
        """The highest policy version that sampled a token of the group; 0 for a group without tokens."""
        return max((span.version for c in self.completions for span in c.spans), default=0)

    @property
    def tokens(self) -> int:
        """Tokens of all completions."""
        return sum(len(c.token_ids) for c in self.completions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The state of a held-out evaluation; `accuracy` is the mean of one reward over `completions`."""

    done: bool
    version: int
    completions: int
    errors: int
    accuracy: float
    mean_version: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """Every scored group handed in since the step before, whether it was trained on or filtered.

    `unvaried_groups` are those whose task rewards are all equal. Sums and counts are of completions, by
    reward.
    """

    groups: int = 0
    unvaried_groups: int = 0
    reward_sums: Mapping[str, float] = field(default_factory=dict)
    reward_counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def unvaried_share(self) -> float:
        """Share of the groups whose task rewards are all equal."""
        return self.unvaried_groups / self.groups if self.groups else 0.0

    @property
    def reward_means(self) -> Mapping[str, float]:
        """Mean of each reward that any completion has a score for."""
        return {n: self.reward_sums[n] / count for n, count in self.reward_counts.items() if count}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A position in the order of dispatch: the next index, and those below it that are not settled yet."""

    dispatched: int = 0
    open: tuple[int, ...] = ()


START = Cursor()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The counters of invariant 5. Groups, unless the name says tokens or completions.

    `skipped` counts prompts that were passed over before anybody got their lease: in neither equation.
    `refills_exhausted` counts groups without variance that were kept all the same: part of `inserted`.
    """

    leased: int = 0
    inserted: int = 0
    returned: int = 0
    expired: int = 0
    running: int = 0
    trained: int = 0
    filtered: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    buffered: int = 0
    in_flight: int = 0
    tokens_inserted: int = 0
    tokens_trained: int = 0
    fenced: int = 0
    duplicates: int = 0
    withheld: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    refills_exhausted: int = 0

    @property
    def residual(self) -> int:
        """What does not add up: 0, or a group was lost or counted twice."""
        leases = self.leased - self.inserted - self.returned - self.expired - self.running
        settled = self.trained + sum(self.filtered.values()) + sum(self.dropped.values())
        return abs(leases) + abs(self.inserted - settled - self.buffered - self.in_flight)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStats:
    """The ledger with the admission state, read in one atomic step."""

    ledger: Ledger
    version: int
    admission_free: int
    kept: int
