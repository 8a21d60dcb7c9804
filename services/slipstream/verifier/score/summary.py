"""The progress line of a scoring, and its summary: the number of each outcome, the mean, and a histogram."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import fsum
from typing import TextIO

from slipstream.records import Outcome, Reward

BINS = 10
BAR = 40
EVERY_SECONDS = 0.5


class Summary:
    """The scores of one reward."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._outcomes: Counter[Outcome] = Counter()
        self._values: list[float] = []
        self._first_error = ""

    def add(self, component: Reward) -> None:
        """Add one verdict. An error has no value."""
        self._outcomes[component.outcome] += 1
        if component.outcome is not Outcome.ERROR:
            self._values.append(component.value)
        elif not self._first_error:
            self._first_error = component.detail

    @property
    def errors(self) -> int:
        """Number of completions that could not be scored."""
        return self._outcomes[Outcome.ERROR]

    def lines(self) -> Iterator[str]:
        """Yield the summary as text."""
        counts = ", ".join(f"{outcome.value} {self._outcomes[outcome]}" for outcome in Outcome)
        yield f"{self._name}: {_mean(self._values)} ({counts})"
        for label, count in histogram(self._values):
            bar = "█" * round(BAR * count / max(1, len(self._values)))
            yield f"  {label:>18} {count:>7} {bar}".rstrip()
        if self.errors:
            yield f"  the first error: {self._first_error}"


class Tally:
    """The scores of all rewards, their weighted totals, and the number of bad rows."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._rewards = {name: Summary(name) for name in weights}
        self._totals: list[float] = []
        self.completions = 0
        self.bad_rows = 0

    def add(self, vector: Sequence[Reward]) -> float | None:
        """Add the verdicts on one completion. Return their weighted sum, or None if one is an error."""
        self.completions += 1
        for component in vector:
            self._rewards[component.name].add(component)
        if any(component.outcome is Outcome.ERROR for component in vector):
            return None
        self._totals.append(sum(self._weights[part.name] * part.value for part in vector))
        return self._totals[-1]

    @property
    def whole(self) -> bool:
        """Whether there were completions, and all of them were scored."""
        errors = any(each.errors for each in self._rewards.values())
        return self.completions > 0 and not self.bad_rows and not errors

    def lines(self) -> Iterator[str]:
        """Yield the summary as text."""
        for each in self._rewards.values():
            yield from each.lines()
        if len(self._weights) > 1:
            weights = ", ".join(f"{weight:g} {name}" for name, weight in self._weights.items())
            yield f"total: {_mean(self._totals)} ({weights})"
        if self.bad_rows:
            yield f"{self.bad_rows} bad row{'s were' if self.bad_rows > 1 else ' was'} left out"
        elif not self.completions:
            yield "no rows: nothing was scored"


def _mean(values: Sequence[float]) -> str:
    return f"mean {fsum(values) / len(values):.4f} of {len(values)}" if values else "no scores"


def histogram(values: Sequence[float]) -> list[tuple[str, int]]:
    """Return value → count if there are few values; else counts in ten equal bins."""
    exact = Counter(values)
    if len(exact) <= BINS:
        return [(f"{value:.4g}", exact[value]) for value in sorted(exact)]
    least, greatest = min(values), max(values)
    width = (greatest - least) / BINS
    counts = Counter(min(int((value - least) / width), BINS - 1) for value in values)
    return [(f"{least + i * width:.3g} to {least + (i + 1) * width:.3g}", counts[i]) for i in range(BINS)]


class Progress:
    """Shows the number of scored completions, if the stream is a terminal."""

    def __init__(self, stream: TextIO, *, shown: bool) -> None:
        self._stream = stream
        self._shown = shown and stream.isatty()
        self._started = self._last = time.monotonic()

    def at(self, completions: int) -> None:
        """Show that so many completions are scored."""
        now = time.monotonic()
        if self._shown and now - self._last >= EVERY_SECONDS:
            self._last = now
            rate = completions / (now - self._started)
            self._stream.write(f"\r{completions:,} completions scored, {rate:,.0f}/s\x1b[K")
            self._stream.flush()

    def clear(self) -> None:
        """Remove the progress line, before other lines are printed."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
