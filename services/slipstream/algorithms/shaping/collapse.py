"""The alarm on a collapse of the policy: entropy, distinct-n and the rewards' deviation fall together."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from slipstream.algorithms.spec.shaping import CollapseAlarm

WATCHED = ("token_entropy", "distinct_2", "reward_std")
"""Metrics that must all fall for the alarm. A single one may fall because the task is learned."""

Point = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollapseWatch:
    """The watched metrics of the first steps, whose mean is the level, and of the last steps."""

    spec: CollapseAlarm
    first: tuple[Point, ...] = ()
    last: tuple[Point, ...] = ()

    def after(self, metrics: Mapping[str, float]) -> tuple["CollapseWatch", bool]:
        """Return the watch after one more step, and whether to raise the alarm.

        A step without one of the metrics (missing, or not finite) leaves the watch as it is.
        """
        point = tuple(metrics.get(name, math.nan) for name in WATCHED)
        if not all(math.isfinite(value) for value in point):
            return self, False
        window = self.spec.window
        first = self.first if len(self.first) >= window else (*self.first, point)
        watch = CollapseWatch(spec=self.spec, first=first, last=(*self.last, point)[-window:])
        return watch, watch.fallen == set(WATCHED)

    @property
    def fallen(self) -> set[str]:
        """The metrics whose mean over the last steps is below the share of their level; empty before a full
        window."""
        if len(self.first) < self.spec.window:
            return set()
        level, now = _means(self.first), _means(self.last)
        return {n for n, was, is_ in zip(WATCHED, level, now, strict=True) if is_ < self.spec.share * was}

    def to_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, as plain lists."""
        return {"first": [list(point) for point in self.first], "last": [list(point) for point in self.last]}

    @classmethod
    def from_dict(
        cls, spec: CollapseAlarm, state: Mapping[str, Sequence[Sequence[float]]]
    ) -> "CollapseWatch":
        """Restore the watch from a checkpoint. With a shorter window than then, only its last steps are
        kept."""
        return cls(
            spec=spec,
            first=tuple(tuple(point) for point in state["first"])[: spec.window],
            last=tuple(tuple(point) for point in state["last"])[-spec.window :],
        )


def _means(points: Sequence[Point]) -> list[float]:
    return [fmean(column) for column in zip(*points, strict=True)]
