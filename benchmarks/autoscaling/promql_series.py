"""Samples in memory, as Prometheus keeps them: series by name and labels, looked up at a time."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

LOOKBACK_SECONDS = 300.0

Labels = tuple[tuple[str, str], ...]
"""Sorted pairs, without the name and without empty values."""

Matches = Callable[[Labels], bool]


@dataclass(slots=True)
class Series:
    """Samples in the order of their times; a value of None says that the series ends here."""

    times: list[float] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)

    def at(self, time: float) -> float | None:
        """The newest value that is not older than the lookback."""
        index = bisect_right(self.times, time) - 1
        if index < 0 or self.times[index] < time - LOOKBACK_SECONDS:
            return None
        return self.values[index]

    def between(self, start: float, end: float) -> list[tuple[float, float]]:
        """Samples from start to end, both included, as in Prometheus before version 3."""
        span = range(bisect_left(self.times, start), bisect_right(self.times, end))
        return [(self.times[i], value) for i in span if (value := self.values[i]) is not None]


class Store:
    """All series. Invariant: a series grows at its end only."""

    def __init__(self) -> None:
        self._series: dict[str, dict[Labels, Series]] = {}
        self._open: dict[tuple[str, str], set[Labels]] = {}

    def add(self, name: str, labels: Labels, time: float, value: float) -> None:
        """Add a sample."""
        series = self._series.setdefault(name, {}).setdefault(labels, Series())
        assert not series.times or series.times[-1] < time, f"{name}{labels} has two samples at {time}"
        series.times.append(time)
        series.values.append(value)

    def replace(self, name: str, time: float, values: Mapping[Labels, float], *, source: str) -> None:
        """Set the samples of a source (a rule or a target), and end the series that it no longer has."""
        for labels in self._open.get((name, source), set()) - values.keys():
            series = self._series[name][labels]
            series.times.append(time)
            series.values.append(None)
        for labels, value in values.items():
            self.add(name, labels, time, value)
        self._open[name, source] = set(values)

    def select(self, name: str, matches: Matches) -> Iterator[tuple[Labels, Series]]:
        """The series of a name whose labels match."""
        for labels, series in self._series.get(name, {}).items():
            if matches(labels):
                yield labels, series

    def names(self) -> Iterator[tuple[str, Labels, Series]]:
        """Return all series, with their names and labels."""
        for name, by_labels in self._series.items():
            for labels, series in by_labels.items():
                yield name, labels, series


def labels_of(**labels: str) -> Labels:
    """Labels by keyword."""
    return tuple(sorted((name, value) for name, value in labels.items() if value))


def matcher(name: str, operator: str, value: str) -> Matches:
    """Return a test of one label; operators are =, !=, =~ and !~."""
    wanted = re.compile(value if operator in ("=~", "!~") else re.escape(value))
    positive = operator in ("=", "=~")
    return lambda labels: (wanted.fullmatch(dict(labels).get(name, "")) is not None) == positive
