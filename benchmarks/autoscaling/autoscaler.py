"""KEDA and the HorizontalPodAutoscaler, for a trigger with the metric type Value.

value ─▶ KEDA: 0 ◀▶ 1 ─▶ HPA: ceil(ready pods × value), tolerance ─▶ stabilisation ─▶ policies ─▶ replicas
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

SYNC_SECONDS = 15.0
TOLERANCE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """A section of `behavior`: the window in seconds; in a period, percent or pods may change, the larger."""

    window: float
    percent: float
    pods: int
    period: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Behavior:
    """How fast an autoscaler may change the replicas."""

    up: Direction
    down: Direction


KUBERNETES_DEFAULT = Behavior(
    up=Direction(window=0, percent=100, pods=4, period=15),
    down=Direction(window=300, percent=100, pods=0, period=15),
)


@dataclass(slots=True, kw_only=True)
class Autoscaler:
    """Decides the number of replicas. Invariant: 0, or between 1 and `most`."""

    behavior: Behavior
    most: int
    cooldown: float = 300.0
    replicas: int = 0
    events: list[tuple[float, int, int]] = field(default_factory=list)
    _recommended: list[tuple[float, int]] = field(default_factory=list)
    _active_at: float = -math.inf

    def sync(self, time: float, *, value: float, ready: int) -> int:
        """Run one decision; `value` is that of the trigger, whose threshold is 1."""
        if value > 0:
            self._active_at = time
        if self.replicas == 0:
            self._change(time, 1 if value > 0 else 0)
        elif time - self._active_at >= self.cooldown:
            self._change(time, 0)
            self._recommended.clear()
        else:
            self._change(time, self._scaled(time, value=value, ready=ready))
        return self.replicas

    def _scaled(self, time: float, *, value: float, ready: int) -> int:
        near = abs(1.0 - value) <= TOLERANCE + 1e-9
        wanted = self.replicas if near else math.ceil(value * ready - 1e-9)
        wanted = min(max(wanted, 1), self.most)
        self._recommended.append((time, wanted))
        stable = self._stable(time)
        if stable > self.replicas:
            return min(stable, self._limit(time, self.behavior.up, 1), self.most)
        return max(stable, self._limit(time, self.behavior.down, -1), 1)

    def _stable(self, time: float) -> int:
        """Limit the change to what every recommendation within the windows of both directions allows."""
        least = min(self._within(time, self.behavior.up.window))
        most = max(self._within(time, self.behavior.down.window))
        return min(max(self.replicas, least), most)

    def _within(self, time: float, window: float) -> Sequence[int]:
        newest = self._recommended[-1][1]
        return [newest, *(wanted for at, wanted in self._recommended if at > time - window)]

    def _limit(self, time: float, direction: Direction, sign: int) -> int:
        moved = sum(after - before for at, before, after in self.events if at > time - direction.period)
        start = self.replicas - (moved if moved * sign > 0 else 0)
        by_percent = start * (1 + sign * direction.percent / 100)
        by_pods = start + sign * direction.pods
        return max(math.ceil(by_percent), by_pods) if sign > 0 else min(int(by_percent), by_pods)

    def _change(self, time: float, replicas: int) -> None:
        if replicas != self.replicas:
            self.events.append((time, self.replicas, replicas))
            self.replicas = replicas
