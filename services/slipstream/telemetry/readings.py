"""A metrics page, read back: the values of one pod by name and labels."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

PREFIX = "slipstream_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """A histogram: how many observations are at most each bound (the last is infinite), and their sum."""

    cumulative: tuple[tuple[float, float], ...]
    sum: float

    @property
    def count(self) -> float:
        """Number of observations."""
        return self.cumulative[-1][1] if self.cumulative else 0.0

    @property
    def mean(self) -> float:
        """Mean observation; 0 without any."""
        return self.sum / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The least bound that `share` of the observations do not exceed; infinite beyond the last bound."""
        wanted = share * self.count
        return next((bound for bound, count in self.cumulative if count >= wanted and count), math.nan)

    def __add__(self, other: "Buckets") -> "Buckets":
        """Both together; they must have the same bounds."""
        assert [b for b, _ in self.cumulative] == [b for b, _ in other.cumulative], "other bounds"
        pairs = zip(self.cumulative, other.cumulative, strict=True)
        return Buckets(
            cumulative=tuple((bound, mine + yours) for (bound, mine), (_, yours) in pairs),
            sum=self.sum + other.sum,
        )


class Page:
    """The samples of a page; names are those of the table, without their prefix."""

    def __init__(self, text: str) -> None:
        """Errors: ValueError for what is not a metrics page."""
        self._samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removeprefix(PREFIX)
                self._samples.setdefault(name, []).append((sample.labels, sample.value))

    def value(self, name: str, **labels: str) -> float | None:
        """The value with these labels; None when the pod has not set it."""
        return next((value for found, value in self.rows(name) if found == labels), None)

    def rows(self, name: str) -> Iterator[tuple[Mapping[str, str], float]]:
        """All values of a metric with their labels."""
        return iter(self._samples.get(name, ()))

    def histogram(self, name: str) -> Buckets | None:
        """A histogram without labels; None when the pod has not made it."""
        cumulative = sorted((float(labels["le"]), value) for labels, value in self.rows(f"{name}_bucket"))
        total = self.value(f"{name}_sum")
        if not cumulative or total is None:
            return None
        return Buckets(cumulative=tuple(cumulative), sum=total)
