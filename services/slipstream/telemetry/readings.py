"""Parser of a pod's /metrics page: its values by name and labels."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

PREFIX = "slipstream_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """A histogram: (bound, number of observations <= bound) with a last bound of infinity, and their sum."""

    cumulative: tuple[tuple[float, float], ...]
    sum: float

    @property
    def count(self) -> float:
        """Number of observations."""
        return self.cumulative[-1][1] if self.cumulative else 0.0

    @property
    def mean(self) -> float:
        """Mean of the observations; 0 without observations."""
        return self.sum / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Return the least bound that a `share` of the observations does not exceed; NaN without any."""
        wanted = share * self.count
        return next((bound for bound, count in self.cumulative if count >= wanted and count), math.nan)

    def __add__(self, other: "Buckets") -> "Buckets":
        """Return the histogram of both sets of observations; their bounds must be equal."""
        assert [b for b, _ in self.cumulative] == [b for b, _ in other.cumulative], "other bounds"
        pairs = zip(self.cumulative, other.cumulative, strict=True)
        return Buckets(
            cumulative=tuple((bound, mine + yours) for (bound, mine), (_, yours) in pairs),
            sum=self.sum + other.sum,
        )


class Page:
    """The samples of a page, by the names of the table without their prefix."""

    def __init__(self, text: str) -> None:
        """Parse the text of a page. Errors: ValueError."""
        self._samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removeprefix(PREFIX)
                self._samples.setdefault(name, []).append((sample.labels, sample.value))

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value with exactly these labels; None if the pod has not set it."""
        return next((value for other, value in self.rows(name) if other == labels), None)

    def rows(self, name: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """Return all values of a metric with their labels."""
        return iter(self._samples.get(name, ()))

    def histogram(self, name: str) -> Buckets | None:
        """Return a histogram without labels; None if the pod does not have it."""
        cumulative = sorted((float(labels["le"]), value) for labels, value in self.rows(f"{name}_bucket"))
        total = self.value(f"{name}_sum")
        if not cumulative or total is None:
            return None
        return Buckets(cumulative=tuple(cumulative), sum=total)
