"""Warns of recent groups without a training signal: filtered by replay, or with equal rewards."""

from collections import Counter, deque
from collections.abc import Mapping

from slipstream.cli.launch.history import Row
from slipstream.records import Ledger, finite_number

WINDOW_STEPS = 3
"""Window of the shares, in steps. A warning needs a full window."""
ALARM_SHARE, CALM_SHARE = 0.8, 0.5
"""There is a warning above the first share, and a second one only after the share was below the second."""
REASONS: Mapping[str, str] = {
    "zero_variance": "all their answers were rewarded alike",
    "unscored": "their rewards failed",
}


class FilteredShare:
    """The share of filtered groups among the groups that were inserted in the last WINDOW_STEPS steps."""

    def __init__(self, groups_per_step: int) -> None:
        self._least = WINDOW_STEPS * groups_per_step
        self._ledgers: deque[Ledger] = deque()
        self._alarmed = False

    def add(self, ledger: Ledger) -> None:
        """Add the newest ledger. A resumed run counts from its first ledger."""
        self._ledgers.append(ledger)
        while len(self._ledgers) > 2 and ledger.inserted - self._ledgers[1].inserted >= self._least:
            self._ledgers.popleft()

    @property
    def value(self) -> float | None:
        """The share; None before a group was inserted."""
        return sum(self.by_reason.values()) / self.inserted if self.inserted else None

    @property
    def inserted(self) -> int:
        """Number of inserted groups in the window."""
        return self._ledgers[-1].inserted - self._ledgers[0].inserted if self._ledgers else 0

    @property
    def by_reason(self) -> Counter[str]:
        """Number of filtered groups in the window, by reason."""
        if not self._ledgers:
            return Counter()
        return Counter(self._ledgers[-1].filtered) - Counter(self._ledgers[0].filtered)

    def warning(self) -> str:
        """Return a warning, once, if most groups are filtered; empty otherwise."""
        share = self.value or 0.0
        if self._alarmed or share < ALARM_SHARE or self.inserted < self._least:
            self._alarmed = self._alarmed and share >= CALM_SHARE
            return ""
        self._alarmed = True
        why = "; ".join(
            f"{count:,} because {REASONS.get(reason, reason)}"
            for reason, count in self.by_reason.most_common()
        )
        return f"warning: {share:.0%} of the last {self.inserted:,} groups were filtered ({why})"


class UnvariedSteps:
    """Detects steps in which nearly all groups have equal rewards for all their answers."""

    def __init__(self) -> None:
        self._shares: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._alarmed = False

    def add(self, row: Row) -> None:
        """Add the row of a step."""
        share = finite_number(row.get("unvaried_share"))
        if share is not None:
            self._shares.append(share)

    def warning(self) -> str:
        """Return a warning, once, if the last steps had no training signal; empty otherwise."""
        lowest = min(self._shares, default=0.0)
        if self._alarmed or lowest < ALARM_SHARE or len(self._shares) < WINDOW_STEPS:
            self._alarmed = self._alarmed and lowest >= CALM_SHARE
            return ""
        self._alarmed = True
        return (
            f"warning: for {WINDOW_STEPS} steps, {lowest:.0%} or more of the groups had equal rewards for "
            "all their answers, and nothing is learned from those"
        )
