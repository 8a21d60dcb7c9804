"""Pass rate of a prompt, the probability that the prompt is sampled, and the size of its group."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from slipstream.algorithms.spec.shaping import AdaptiveGroup, Buckets, Goldilocks, Shaping

SkipReason = Literal["goldilocks", "buckets"]

DRAW_BITS = 53


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """Decayed counts of the correct and of all completions of one prompt; total 0 is a prompt never seen."""

    correct: float = 0.0
    total: float = 0.0

    @property
    def rate(self) -> float | None:
        """Share of correct completions; None for a prompt that was never seen."""
        return self.correct / self.total if self.total > 0 else None

    def after(self, *, correct: int, total: int, decay: float) -> "PassRate":
        """Return the counts after a group with `correct` right of `total`; old counts are multiplied by
        `decay`."""
        return PassRate(correct=decay * self.correct + correct, total=decay * self.total + total)


def admission_probability(rate: float | None, *, versions_since_seen: int, shaping: Shaping) -> float:
    """Return the probability that a prompt is sampled in its turn: goldilocks × buckets; 1 for an unseen
    one."""
    if rate is None:
        return 1.0
    return _in_goldilocks(rate, versions_since_seen, shaping.goldilocks) * _of_bucket(rate, shaping.buckets)


def skip_reason(
    rate: float | None, *, versions_since_seen: int, shaping: Shaping, draw: float
) -> SkipReason | None:
    """Return which filter skips a prompt; None when it is sampled. `draw` in [0, 1) decides."""
    if draw < admission_probability(rate, versions_since_seen=versions_since_seen, shaping=shaping):
        return None
    assert rate is not None, "an unseen prompt has the probability 1"
    refused = draw >= _in_goldilocks(rate, versions_since_seen, shaping.goldilocks)
    return "goldilocks" if refused else "buckets"


def draw_of(seed: int, dispatch_index: int) -> float:
    """Return a number in [0, 1): the same in every replica for one dispatch of one run."""
    digest = blake2b(f"{seed}/admission/{dispatch_index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> (64 - DRAW_BITS)) / 2.0**DRAW_BITS


def group_size(rate: float | None, adaptive: AdaptiveGroup, *, default: int) -> int:
    """Return the size of a group, by the formula of AdaptiveGroup; `default` for an unseen prompt."""
    if rate is None:
        return default
    p = min(max(rate, adaptive.margin), 1.0 - adaptive.margin)
    needed = math.log(1.0 - adaptive.confidence) / math.log(max(p, 1.0 - p))
    return min(max(math.ceil(needed - 1e-9), adaptive.smallest), adaptive.largest)


def _in_goldilocks(rate: float, versions_since_seen: int, goldilocks: Goldilocks | None) -> float:
    if goldilocks is None or goldilocks.low <= rate <= goldilocks.high:
        return 1.0
    return 1.0 if versions_since_seen >= goldilocks.reprobe_steps else goldilocks.epsilon


def _of_bucket(rate: float, buckets: Buckets | None) -> float:
    if buckets is None:
        return 1.0
    return buckets.weights[bisect_right(buckets.thresholds, rate)] / max(buckets.weights)
