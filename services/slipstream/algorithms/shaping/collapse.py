"""The alarm that a policy collapses: entropy, distinct-n and the rewards' spread have fallen together."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from slipstream.algorithms.spec.shaping import CollapseAlarm

WATCHED = ("token_entropy", "distinct_2", "reward_std")
"""What must fall together, by the name of the metric: one alone may fall because the task is learned."""

Point = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollapseWatch:
    """The watched metrics of the first steps, which set the level of each, and of the last ones."""

    spec: CollapseAlarm
    first: tuple[Point, ...] = ()
    last: tuple[Point, ...] = ()

    def after(self, metrics: Mapping[str, float]) -> tuple["CollapseWatch", bool]:
        """The watch after one more step, and whether to raise the alarm.

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
        """The metrics whose mean of late is below the share of their level; none until there are levels."""
        if len(self.first) < self.spec.window:
            return set()
        level, now = _means(self.first), _means(self.last)
        return {n for n, was, is_ in zip(WATCHED, level, now, strict=True) if is_ < self.spec.share * was}

    def to_dict(self) -> dict[str, Any]:
        """For a checkpoint: plain lists."""
        return {"first": [list(point) for point in self.first], "last": [list(point) for point in self.last]}

    @classmethod
    def from_dict(
        cls, spec: CollapseAlarm, state: Mapping[str, Sequence[Sequence[float]]]
    ) -> "CollapseWatch":
        """From a checkpoint; a window that was made shorter since then forgets the rest."""
        return cls(
            spec=spec,
            first=tuple(tuple(point) for point in state["first"])[: spec.window],
            last=tuple(tuple(point) for point in state["last"])[-spec.window :],
        )


def _means(points: Sequence[Point]) -> list[float]:
    return [fmean(column) for column in zip(*points, strict=True)]
