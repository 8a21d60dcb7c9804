"""What every room speaks: the frozen values that cross from one room to another."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
class StepReward:
    """The score of one step of an answer; a step begins where the one before it ends."""

    value: float
    text_end: int
    """Characters of the answer up to the end of the step."""
    token_end: int = 0
    """Tokens of the completion up to the end of the step; 0 until a rollout has found them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """One named component of a reward vector; `value` means nothing when `outcome` is ERROR."""

    name: str
    value: float
    outcome: Outcome
    detail: str = ""
    answer: str = ""
    """The part of the completion that was judged, where the component takes one out; shortened."""
    steps: tuple[StepReward, ...] = ()
    """Where the component scores the steps of an answer: their scores, first to last."""


class RoutingMismatch(ValueError):
    """Recorded experts do not fit the tokens or the model that they are said to belong to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedExperts:
    """The experts that an engine chose, [tokens, layers, top_k] ids in row-major order, little-endian.

    They cover the first `tokens` tokens of prompt and completion. `layers` counts every hidden layer of the
    model; in a layer without experts the ids mean nothing. Errors: RoutingMismatch when `ids` has another
    size.
    """

    tokens: int
    layers: int
    top_k: int
    id_bytes: int
    """Bytes of one id: 1 or 2."""
    ids: bytes = field(repr=False)

    def __post_init__(self) -> None:
        shape = (self.tokens, self.layers, self.top_k)
        if self.id_bytes not in (1, 2) or min(shape) < 1:
            raise RoutingMismatch(
                f"routed experts: got shape {list(shape)} with ids of {self.id_bytes} bytes, needs at least "
                "one of each, and ids of 1 or 2 bytes"
            )
        if len(self.ids) != self.tokens * self.token_bytes:
            raise RoutingMismatch(
                f"routed experts: shape {list(shape)} with ids of {self.id_bytes} bytes needs "
                f"{self.tokens * self.token_bytes} bytes, got {len(self.ids)}"
            )

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        return self.layers * self.top_k * self.id_bytes

    def followed_by(self, later: "RoutedExperts") -> "RoutedExperts":
        """These, and what `later` knows of the tokens behind them. Errors: RoutingMismatch."""
        if (self.layers, self.top_k, self.id_bytes) != (later.layers, later.top_k, later.id_bytes):
            raise RoutingMismatch("routed experts: two turns of one completion have other layers or top_k")
        more = later.ids[self.tokens * self.token_bytes :]
        return replace(self, tokens=max(self.tokens, later.tokens), ids=self.ids + more)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherLogprobs:
    """What a teacher makes of the tokens of a completion: logprobs in nats, after temperature.

    The bytes are little-endian, row-major. Errors: ValueError when they do not have the stated shape.
    """

    logprobs: bytes = field(repr=False)
    """Of each token, [tokens] float32."""
    top_k: int = 0
    """Likeliest tokens at each position."""
    top_ids: bytes = field(default=b"", repr=False)
    """[tokens, top_k] uint32."""
    top_logprobs: bytes = field(default=b"", repr=False)
    """[tokens, top_k] float32."""

    def __post_init__(self) -> None:
        sizes = (len(self.top_ids), len(self.top_logprobs))
        wanted = len(self.logprobs) * self.top_k
        if len(self.logprobs) % 4 or self.top_k < 0 or sizes != (wanted, wanted):
            raise ValueError(
                f"teacher logprobs: {len(self.logprobs)} bytes of logprobs and top_k {self.top_k} need "
                f"{wanted} bytes of ids and of their logprobs, got {sizes[0]} and {sizes[1]}"
            )

    @property
    def tokens(self) -> int:
        """Tokens covered."""
        return len(self.logprobs) // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprobs:
    """The likeliest tokens at each sampled token of a completion, under the policy that sampled it.

    The bytes are little-endian, row-major. Tokens that an environment put in have no row. Errors: ValueError
    when the bytes are not whole rows.
    """

    top_k: int
    """Likeliest tokens at each position, 1 at least."""
    ids: bytes = field(repr=False)
    """[sampled tokens, top_k] uint32."""
    logprobs: bytes = field(repr=False)
    """[sampled tokens, top_k] float32, nats, after temperature; -inf for a token that cannot be sampled."""

    def __post_init__(self) -> None:
        sizes = len(self.ids), len(self.logprobs)
        if self.top_k < 1 or sizes[0] != sizes[1] or sizes[0] % (4 * self.top_k):
            raise ValueError(
                f"top logprobs: got {sizes[0]} bytes of ids and {sizes[1]} of logprobs with top_k "
                f"{self.top_k}, needs as many of both, 4 for each of at least one token at a position"
            )

    @property
    def tokens(self) -> int:
        """Sampled tokens covered."""
        return len(self.ids) // (4 * self.top_k)

    def followed_by(self, later: "TopLogprobs") -> "TopLogprobs":
        """These, and those of a later turn. Errors: ValueError for another top_k."""
        if self.top_k != later.top_k:
            raise ValueError(
                f"top logprobs: two turns of one completion have top_k {self.top_k} and {later.top_k}"
            )
        return replace(self, ids=self.ids + later.ids, logprobs=self.logprobs + later.logprobs)


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
    routed_experts: RoutedExperts | None = None
    """Of prompt and completion, where the engine was asked for them."""
    teacher: TeacherLogprobs | None = None
    """Of the completion, where a learner has asked a teacher."""
    top_logprobs: TopLogprobs | None = None
    """Of the sampled tokens, where the objective reads them."""

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.logprobs), len(self.mask)}
        if len(lengths) != 1:
            raise ValueError(
                f"completion: token_ids, logprobs and mask must be equally long, "
                f"got {len(self.token_ids)}, {len(self.logprobs)}, {len(self.mask)}"
            )
        if self.teacher is not None and self.teacher.tokens != len(self.token_ids):
            raise ValueError(
                f"completion: the teacher's logprobs are of {self.teacher.tokens} tokens, and there are "
                f"{len(self.token_ids)}"
            )
        if self.top_logprobs is not None and self.top_logprobs.tokens != sum(self.mask):
            raise ValueError(
                f"completion: top logprobs of {self.top_logprobs.tokens} tokens, and the policy sampled "
                f"{sum(self.mask)}"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The state of a held-out evaluation; `accuracy` is the mean of one reward over `completions`.

    The three measures are None while nothing could be scored.

    `best_of_n` is the mean over prompts of that reward of the completion that all rewards rank first,
    `majority` that of the most frequent answer (maj@k); n and k are the completions a prompt.
    """

    done: bool
    version: int
    completions: int
    errors: int
    accuracy: float | None
    best_of_n: float | None
    majority: float | None
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
    `retired` counts prompts whose lease ended by a fault too often: in neither, as each lease is counted.
    `refills_exhausted` counts groups without variance that were kept all the same: part of `inserted`.
    `retrained` counts groups that a step of the current learner trained on without holding them: another step
    has trained on them, or will.
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
    retrained: int = 0
    retired: Mapping[str, int] = field(default_factory=dict)

    @property
    def residual(self) -> int:
        """What does not add up: 0, or a group was lost, counted twice or trained on twice."""
        leases = self.leased - self.inserted - self.returned - self.expired - self.running
        settled = self.trained + sum(self.filtered.values()) + sum(self.dropped.values())
        groups = self.inserted - settled - self.buffered - self.in_flight
        return abs(leases) + abs(groups) + self.retrained


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStats:
    """The ledger with the admission state, read in one atomic step."""

    ledger: Ledger
    version: int
    admission_free: int
    kept: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerActivity:
    """What replay knows of one worker, from its heartbeats and its requests for leases."""

    worker_id: str
    silent_seconds: float
    """Since it was last heard from."""
    serving_version: int
    """-1 for none."""
    leases: int
    scoring_failure: str = ""
    """What first kept one of its completions from being scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What the workers are doing, beside the ledger; the oldest lease is 0 s old when none is running."""

    ledger: Ledger = field(default_factory=Ledger)
    admission_free: int = 0
    workers: tuple[WorkerActivity, ...] = ()
    oldest_lease_seconds: float = 0.0
    oldest_lease_worker: str = ""
