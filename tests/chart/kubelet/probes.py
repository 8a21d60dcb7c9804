"""The state of a probe, from its results, as in a kubelet."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The state of a probe. Tests run it more often than its period; failures are counted once per period."""

    period_seconds: float
    failure_threshold: int
    good: bool = False
    bad: bool = False
    refusing_since: float | None = None
    detail: str = ""

    def after(self, problem: str | None, now: float) -> "Verdict":
        """Return the state after a result at `now` (seconds); `problem` None is a success."""
        if problem is None:
            return replace(self, good=True, bad=False, refusing_since=None, detail="")
        since = now if self.refusing_since is None else self.refusing_since
        bad = now - since >= (self.failure_threshold - 1) * self.period_seconds
        good = self.good and not bad
        return replace(self, good=good, bad=bad, refusing_since=since, detail=problem)


def fresh(probe: Mapping[str, Any]) -> Verdict:
    """Return the state before the first result, with the defaults of Kubernetes."""
    return Verdict(
        period_seconds=float(probe.get("periodSeconds", 10)),
        failure_threshold=int(probe.get("failureThreshold", 3)),
    )
