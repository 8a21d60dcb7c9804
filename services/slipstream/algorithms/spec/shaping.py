"""Data shaping as data: which prompts are asked, which groups and tokens train, and what length costs.

The task reward is the weighted sum of the reward components, before any shaping; a completion counts as
correct where it is above `correct_above`.
"""

from dataclasses import dataclass
from typing import Literal

from slipstream.algorithms.spec.checks import (
    STRICT,
    require_boolean,
    require_choice,
    require_integer,
    require_positive,
    require_share,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSampling:
    """A group trains iff its task rewards differ by more than tolerance; a new prompt takes its place.

    The slot of a filtered group is free at once, so nobody waits; a finished group is never discarded because
    a shorter one came first.
    See DAPO: An Open-Source LLM Reinforcement Learning System at Scale, arXiv:2503.14476.
    """

    __pydantic_config__ = STRICT

    tolerance: float = 1e-6
    """Largest range of task rewards in a group that counts as no variance, in units of reward."""
    max_refills: int = 10
    """Filtered groups per policy version, in multiples of groups_per_step, past which groups without
    variance are kept again, with advantages of 0 under a group's baseline, and the run goes on."""

    def __post_init__(self) -> None:
        if self.tolerance != 0:
            require_positive("dynamic_sampling.tolerance", self.tolerance)
        require_integer("dynamic_sampling.max_refills", self.max_refills, at_least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlongFilter:
    """A completion that ran into its token budget does not train and leaves the normaliser.

    See DAPO, arXiv:2503.14476, section 3.4.
    """

    __pydantic_config__ = STRICT

    statistics: Literal["keep", "drop"] = "keep"
    """Whether its reward still counts in its group's mean and deviation (TRL keeps it)."""

    def __post_init__(self) -> None:
        require_choice("overlong_filter.statistics", self.statistics, ("keep", "drop"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftOverlong:
    """Added to the reward: 0 up to safe_len tokens, then linear to -factor at max_len.

    With floor the punishment stays at -factor beyond max_len (the paper); without, it falls on (linear).
    See DAPO, arXiv:2503.14476, equation 13: safe_len = L_max - L_cache, 16384 of 20480 there.
    """

    __pydantic_config__ = STRICT

    safe_len: int | None = None
    """Longest completion without punishment, in tokens; None = 0.8 of max_len."""
    max_len: int | None = None
    """Length of the full punishment, in tokens; None = rollout.max_new_tokens."""
    factor: float = 1.0
    """Full punishment, in units of reward."""
    floor: bool = True
    """Whether it stops at -factor."""

    def __post_init__(self) -> None:
        if self.safe_len is not None:
            require_integer("soft_overlong.safe_len", self.safe_len, at_least=0)
        if self.max_len is not None:
            require_integer("soft_overlong.max_len", self.max_len, at_least=(self.safe_len or 0) + 1)
        require_positive("soft_overlong.factor", self.factor)
        require_boolean("soft_overlong.floor", self.floor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """How the pass rate of a prompt is remembered: a decayed count of correct and of all completions."""

    __pydantic_config__ = STRICT

    decay: float = 0.9
    """What is left of the old counts when a group comes in, in [0, 1]."""
    correct_above: float = 0.5
    """Task reward above which a completion is correct."""

    def __post_init__(self) -> None:
        require_share("difficulty.decay", self.decay)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goldilocks:
    """A prompt is asked iff its pass rate lies in [low, high]; unseen ones always are.

    An excluded prompt is asked again every reprobe_steps versions, and at any time with the chance epsilon.
    """

    __pydantic_config__ = STRICT

    low: float = 0.2
    """Least pass rate."""
    high: float = 0.8
    """Largest pass rate."""
    reprobe_steps: int = 500
    """Policy versions after which an excluded prompt is asked again."""
    epsilon: float = 0.02
    """Chance that an excluded prompt is asked all the same."""

    def __post_init__(self) -> None:
        require_share("goldilocks.low", self.low)
        require_share("goldilocks.high", self.high)
        if self.low >= self.high:
            raise ValueError(f"goldilocks.high: got {self.high!r}, needs more than low, {self.low!r}")
        require_integer("goldilocks.reprobe_steps", self.reprobe_steps, at_least=1)
        require_share("goldilocks.epsilon", self.epsilon)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Prompts by pass rate: a prompt of a bucket is asked in proportion to the bucket's weight.

    thresholds cut [0, 1] into len(thresholds) + 1 buckets, the hardest first; unseen ones are always asked.
    """

    __pydantic_config__ = STRICT

    thresholds: tuple[float, ...] = (0.25, 0.75)
    """Pass rates between the buckets, rising."""
    weights: tuple[float, ...] = (1.0, 1.0, 0.5)
    """Relative chance of a prompt of each bucket to be asked when its turn comes."""

    def __post_init__(self) -> None:
        if list(self.thresholds) != sorted(set(self.thresholds)) or not all(
            0 < t < 1 for t in self.thresholds
        ):
            raise ValueError(f"buckets.thresholds: got {self.thresholds!r}, needs rising numbers in (0, 1)")
        if len(self.weights) != len(self.thresholds) + 1:
            raise ValueError(
                f"buckets.weights: got {len(self.weights)}, needs {len(self.thresholds) + 1}, one a bucket"
            )
        if not all(weight >= 0 for weight in self.weights) or not any(self.weights):
            raise ValueError(f"buckets.weights: got {self.weights!r}, needs numbers >= 0, not all of them 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveGroup:
    """A group large enough to hold a rare kind of answer, right or wrong, with the given chance.

    G = clamp(ceil(log(1 - confidence) / log(max(p, 1 - p))), smallest, largest), with the pass rate p
    clipped to [margin, 1 - margin]; unseen prompts get rollout.group_size. Groups then differ in size: use
    the aggregation prompt_mean, or each prompt weighs as much as its group is large.
    """

    __pydantic_config__ = STRICT

    confidence: float = 0.95
    """Chance of a mixed group, in (0, 1)."""
    smallest: int = 2
    """Least completions of a prompt."""
    largest: int = 32
    """Most completions of a prompt."""
    margin: float = 0.03
    """Pass rates are taken to be at least this far from 0 and 1, in (0, 0.5)."""

    def __post_init__(self) -> None:
        require_positive("adaptive_group.confidence", self.confidence)
        if self.confidence >= 1:
            raise ValueError(f"adaptive_group.confidence: got {self.confidence!r}, needs less than 1")
        require_integer("adaptive_group.smallest", self.smallest, at_least=2)
        require_integer("adaptive_group.largest", self.largest, at_least=self.smallest)
        require_positive("adaptive_group.margin", self.margin, at_most=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollapseAlarm:
    """Alarm when token entropy, distinct-n and the reward's spread all fell below share of their level.

    The level of each is its mean over the first window steps; the mean of the last window is compared.
    """

    __pydantic_config__ = STRICT

    window: int = 20
    """Steps of a mean."""
    share: float = 0.5
    """What counts as fallen: a mean below this share of the level, in (0, 1)."""

    def __post_init__(self) -> None:
        require_integer("collapse_alarm.window", self.window, at_least=1)
        require_positive("collapse_alarm.share", self.share, at_most=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """Every shaping of a run; None is off."""

    __pydantic_config__ = STRICT

    dynamic_sampling: DynamicSampling | None = None
    """Filter of groups without variance."""
    overlong_filter: OverlongFilter | None = None
    """Truncated completions do not train."""
    soft_overlong: SoftOverlong | None = None
    """Punishment of length."""
    difficulty: Difficulty = Difficulty()
    """Memory of pass rates, kept when goldilocks, buckets or adaptive_group are on."""
    goldilocks: Goldilocks | None = None
    """Prompts that are neither too easy nor too hard."""
    buckets: Buckets | None = None
    """Prompts in proportion to weights by difficulty."""
    adaptive_group: AdaptiveGroup | None = None
    """Group size by pass rate."""
    duplicates: Literal["keep", "drop", "share"] = "keep"
    """Equal answers in a group: all train; only the first does; each has 1 / count of its advantage."""
    collapse_alarm: CollapseAlarm = CollapseAlarm()
    """When the diversity metrics raise their alarm."""

    def __post_init__(self) -> None:
        require_choice("shaping.duplicates", self.duplicates, ("keep", "drop", "share"))

    @property
    def remembers_pass_rates(self) -> bool:
        """Whether anything needs the pass rate of each prompt."""
        return any((self.goldilocks, self.buckets, self.adaptive_group))
