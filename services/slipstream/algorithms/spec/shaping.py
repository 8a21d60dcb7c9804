"""Specifications of data shaping: sampling of prompts, filters of groups and tokens, penalties on length.

The task reward is the weighted sum of the reward components, before any shaping; a completion counts as
correct where it is above `correct_above`.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from slipstream.algorithms.spec import checks
from slipstream.algorithms.spec.invalid import InvalidPart

GroupSize = Annotated[int, checks.Range(at_least=2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicSampling:
    """A group trains iff its task rewards differ by more than tolerance; a new prompt takes its place.

    A filtered group frees its slot at once, so sampling goes on; a finished group is never discarded because
    a shorter one came first.
    See DAPO: An Open-Source LLM Reinforcement Learning System at Scale, arXiv:2503.14476.
    """

    __pydantic_config__ = checks.STRICT

    tolerance: checks.NotNegative = 1e-6
    """Largest range of task rewards in a group that counts as no variance, in units of reward."""
    max_refills: checks.Count = 10
    """Most filtered groups of one policy version, as a multiple of learner.groups_per_step. Past it groups
    without variance are kept, and the run goes on; a group's baseline gives them advantages of 0."""

    def __post_init__(self) -> None:
        checks.require_fields("dynamic_sampling", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlongFilter:
    """A completion that ran into its token budget does not train and leaves the normaliser.

    See DAPO, arXiv:2503.14476, section 3.4.
    """

    __pydantic_config__ = checks.STRICT

    statistics: Literal["keep", "drop"] = "keep"
    """Whether the reward of such a completion counts in the mean and deviation of its group (TRL: keep)."""

    def __post_init__(self) -> None:
        checks.require_fields("overlong_filter", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftOverlong:
    """Added to the reward: 0 up to safe_len tokens, then linear to -factor at max_len.

    With floor the punishment stays at -factor beyond max_len (the paper); without, it falls on (linear).
    See DAPO, arXiv:2503.14476, equation 13: safe_len = L_max - L_cache, 16384 of 20480 there.
    """

    __pydantic_config__ = checks.STRICT

    safe_len: Annotated[int, checks.Range(at_least=0)] | None = None
    """Longest completion without a penalty, in tokens; null: 0.8 of max_len."""
    max_len: checks.Count | None = None
    """Length at which the penalty is full, in tokens; null: rollout.max_new_tokens."""
    factor: checks.Positive = 1.0
    """The full penalty, in units of reward."""
    floor: bool = True
    """Whether longer completions keep the penalty -factor; else it grows on."""

    def __post_init__(self) -> None:
        checks.require_fields("soft_overlong", self)
        if self.max_len is not None:
            checks.require_integer("soft_overlong.max_len", self.max_len, at_least=(self.safe_len or 0) + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """How the pass rate of a prompt is remembered: a decayed count of correct and of all completions."""

    __pydantic_config__ = checks.STRICT

    decay: checks.Share = 0.9
    """What is left of the old counts when a group is inserted, as a factor."""
    correct_above: float = 0.5
    """Task reward above which a completion is correct."""

    def __post_init__(self) -> None:
        checks.require_fields("difficulty", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goldilocks:
    """A prompt is leased iff its pass rate lies in [low, high]; a prompt that was not sampled yet always is.

    An excluded prompt is leased again every reprobe_steps versions, and at any time with probability epsilon.
    """

    __pydantic_config__ = checks.STRICT

    low: checks.Share = 0.2
    """Least pass rate of a prompt that is leased."""
    high: checks.Share = 0.8
    """Largest pass rate of a prompt that is leased."""
    reprobe_steps: checks.Count = 500
    """Policy versions after which an excluded prompt is leased again."""
    epsilon: checks.Share = 0.02
    """Probability that an excluded prompt is leased all the same."""

    def __post_init__(self) -> None:
        checks.require_fields("goldilocks", self)
        if self.low >= self.high:
            raise InvalidPart("goldilocks.high", f"got {self.high!r}, needs more than low, {self.low!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Buckets of prompts by pass rate. The probability of a lease is in proportion to the bucket's weight.

    thresholds cut [0, 1] into len(thresholds) + 1 buckets, the hardest first. A prompt that was not sampled
    yet is always leased.
    """

    __pydantic_config__ = checks.STRICT

    thresholds: tuple[checks.OpenShare, ...] = (0.25, 0.75)
    """Pass rates between the buckets, rising."""
    weights: tuple[checks.NotNegative, ...] = (1.0, 1.0, 0.5)
    """Relative probability that a prompt of each bucket is leased when its turn comes."""

    def __post_init__(self) -> None:
        if list(self.thresholds) != sorted(set(self.thresholds)) or not all(
            0 < t < 1 for t in self.thresholds
        ):
            raise InvalidPart(
                "buckets.thresholds", f"got {self.thresholds!r}, needs rising numbers in (0, 1)"
            )
        if len(self.weights) != len(self.thresholds) + 1:
            raise InvalidPart(
                "buckets.weights", f"got {len(self.weights)}, needs {len(self.thresholds) + 1}, one a bucket"
            )
        if not all(weight >= 0 for weight in self.weights) or not any(self.weights):
            raise InvalidPart(
                "buckets.weights", f"got {self.weights!r}, needs numbers >= 0, not all of them 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveGroup:
    """A group large enough to hold a rare kind of answer, right or wrong, with the given chance.

    G = clamp(ceil(log(1 - confidence) / log(max(p, 1 - p))), smallest, largest), with the pass rate p
    clipped to [margin, 1 - margin]; unseen prompts get rollout.group_size. Groups then differ in size: use
    the aggregation prompt_mean, or each prompt weighs as much as its group is large.
    """

    __pydantic_config__ = checks.STRICT

    confidence: checks.OpenShare = 0.95
    """Probability of a mixed group."""
    smallest: GroupSize = 2
    """Least completions of a prompt."""
    largest: GroupSize = 32
    """Most completions of a prompt."""
    margin: Annotated[float, checks.Range(above=0, at_most=0.5)] = 0.03
    """Pass rates are taken to be at least this far from 0 and 1."""

    def __post_init__(self) -> None:
        checks.require_fields("adaptive_group", self)
        checks.require_integer("adaptive_group.largest", self.largest, at_least=self.smallest)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollapseAlarm:
    """Alarm when the means of token entropy, distinct-2 and reward deviation over the last `window` steps are
    all below `share` of their means over the first `window` steps."""

    __pydantic_config__ = checks.STRICT

    window: checks.Count = 20
    """Steps of a mean, at the start of the run and at its present end."""
    share: checks.Fraction = 0.5
    """Share of the mean over the first steps below which the mean over the last steps counts as fallen."""

    def __post_init__(self) -> None:
        checks.require_fields("collapse_alarm", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """Filters, penalties and curriculum of a run; null is off."""

    __pydantic_config__ = checks.STRICT

    dynamic_sampling: DynamicSampling | None = None
    """Replace groups without variance of rewards."""
    overlong_filter: OverlongFilter | None = None
    """Do not train on truncated completions."""
    soft_overlong: SoftOverlong | None = None
    """Penalty on long completions."""
    difficulty: Difficulty = Difficulty()
    """How pass rates are remembered, where goldilocks, buckets or adaptive_group is on."""
    goldilocks: Goldilocks | None = None
    """Ask only prompts that are neither too easy nor too hard."""
    buckets: Buckets | None = None
    """Ask prompts in proportion to weights by difficulty."""
    adaptive_group: AdaptiveGroup | None = None
    """Choose the size of a group by the pass rate of the prompt."""
    duplicates: Literal["keep", "drop", "share"] = "keep"
    """Equal answers in a group: `keep`, all train; `drop`, only the first; `share`, each for its share."""
    collapse_alarm: CollapseAlarm = CollapseAlarm()
    """When the alarm of a collapse of diversity is raised."""

    def __post_init__(self) -> None:
        checks.require_fields("shaping", self)

    @property
    def remembers_pass_rates(self) -> bool:
        """Whether anything needs the pass rate of each prompt."""
        return any((self.goldilocks, self.buckets, self.adaptive_group))
