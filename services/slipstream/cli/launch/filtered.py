"""How many of the groups that came of late teach nothing: filtered by replay, or rewarded all alike. Pure."""

from collections import Counter, deque
from collections.abc import Mapping

from slipstream.cli.launch.history import Row
from slipstream.records import Ledger

WINDOW_STEPS = 3
"""Steps' worth of groups that a share is taken over, and steps that a warning waits for."""
ALARM_SHARE, CALM_SHARE = 0.8, 0.5
"""A warning is given above the first, and given again only after the share was below the second."""
REASONS: Mapping[str, str] = {
    "zero_variance": "all their answers were rewarded alike",
    "unscored": "their rewards failed",
}


class FilteredShare:
    """The share of filtered groups among the last few steps' worth of groups that were inserted."""

    def __init__(self, groups_per_step: int) -> None:
        self._least = WINDOW_STEPS * groups_per_step
        self._ledgers: deque[Ledger] = deque()
        self._alarmed = False

    def add(self, ledger: Ledger) -> None:
        """Take in the newest ledger; a resumed run counts from its first one."""
        self._ledgers.append(ledger)
        while len(self._ledgers) > 2 and ledger.inserted - self._ledgers[1].inserted >= self._least:
            self._ledgers.popleft()

    @property
    def value(self) -> float | None:
        """The share; None before a group was inserted."""
        return sum(self.by_reason.values()) / self.inserted if self.inserted else None

    @property
    def inserted(self) -> int:
        """Groups that the share is taken over."""
        return self._ledgers[-1].inserted - self._ledgers[0].inserted if self._ledgers else 0

    @property
    def by_reason(self) -> Counter[str]:
        """How many of them were filtered, by reason."""
        if not self._ledgers:
            return Counter()
        return Counter(self._ledgers[-1].filtered) - Counter(self._ledgers[0].filtered)

    def warning(self) -> str:
        """What to say, once, when most groups are filtered; nothing otherwise."""
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
    """Notices that for some steps nearly no group had two answers with different rewards."""

    def __init__(self) -> None:
        self._shares: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._alarmed = False

    def add(self, row: Row) -> None:
        """Take in the row of a step."""
        share = row.get("unvaried_share")
        if isinstance(share, int | float):
            self._shares.append(float(share))

    def warning(self) -> str:
        """What to say, once, when the steps had nothing to learn from; nothing otherwise."""
        lowest = min(self._shares, default=0.0)
        if self._alarmed or lowest < ALARM_SHARE or len(self._shares) < WINDOW_STEPS:
            self._alarmed = self._alarmed and lowest >= CALM_SHARE
            return ""
        self._alarmed = True
        return (
            f"warning: for {WINDOW_STEPS} steps, {lowest:.0%} or more of the groups had equal rewards for "
            "all their answers, and nothing is learned from those"
        )
