"""What a user wants to know of many scores: how many of each outcome, the mean, and how they are spread."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import fsum

from slipstream.types import Outcome, Reward

BINS = 10
BAR = 40


class Summary:
    """The scores of one reward."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._outcomes: Counter[Outcome] = Counter()
        self._values: list[float] = []

    def add(self, component: Reward) -> None:
        """One verdict; an error has no value."""
        self._outcomes[component.outcome] += 1
        if component.outcome is not Outcome.ERROR:
            self._values.append(component.value)

    @property
    def errors(self) -> int:
        """How many could not be judged."""
        return self._outcomes[Outcome.ERROR]

    def lines(self) -> Iterator[str]:
        """For people."""
        counts = ", ".join(f"{outcome.value} {self._outcomes[outcome]}" for outcome in Outcome)
        mean = f"mean {fsum(self._values) / len(self._values):.4f}" if self._values else "no mean"
        yield f"{self._name}: {mean} of {len(self._values)} ({counts})"
        for label, count in histogram(self._values):
            bar = "█" * round(BAR * count / max(1, len(self._values)))
            yield f"  {label:>18} {count:>7} {bar}".rstrip()


def histogram(values: Sequence[float]) -> list[tuple[str, int]]:
    """Value → how often where there are few values; else ten equal parts from the least to the greatest."""
    exact = Counter(values)
    if len(exact) <= BINS:
        return [(f"{value:.4g}", exact[value]) for value in sorted(exact)]
    least, greatest = min(values), max(values)
    width = (greatest - least) / BINS
    counts = Counter(min(int((value - least) / width), BINS - 1) for value in values)
    return [(f"{least + i * width:.3g} to {least + (i + 1) * width:.3g}", counts[i]) for i in range(BINS)]
