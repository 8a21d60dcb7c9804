"""Data shaping as pure functions: sampling of prompts, filters of groups, penalties on length."""

from slipstream.algorithms.shaping.collapse import WATCHED, CollapseWatch
from slipstream.algorithms.shaping.difficulty import (
    PassRate,
    SkipReason,
    admission_probability,
    draw_of,
    group_size,
    skip_reason,
)
from slipstream.algorithms.shaping.diversity import GroupSample, diversity
from slipstream.algorithms.shaping.duplicates import duplicate_weights
from slipstream.algorithms.shaping.dynamic_sampling import has_variance
from slipstream.algorithms.shaping.overlong import soft_overlong

__all__ = [
    "WATCHED",
    "CollapseWatch",
    "GroupSample",
    "PassRate",
    "SkipReason",
    "admission_probability",
    "diversity",
    "draw_of",
    "duplicate_weights",
    "group_size",
    "has_variance",
    "skip_reason",
    "soft_overlong",
]
