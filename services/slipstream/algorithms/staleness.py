"""How old each token is, in policy versions; importing this needs no torch.

Suffixes: _T packed tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torch import Tensor

BUCKETS: Final = {
    "0": (0, 0),
    "1": (1, 1),
    "2": (2, 2),
    "3-4": (3, 4),
    "5-8": (5, 8),
    ">8": (9, None),
}
"""Smallest and largest staleness of each bucket of the histogram."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessSummary:
    """How old the tokens of a batch are; two batches add up field by field (largest: by maximum)."""

    tokens: int
    total: int
    """Sum of the staleness of every token."""
    largest: int
    histogram: dict[str, int]
    """Tokens in each of BUCKETS."""

    @property
    def mean(self) -> float:
        """Mean staleness; 0 without tokens."""
        return self.total / self.tokens if self.tokens else 0.0


def token_versions(spans: Iterable[Sequence[int]], length: int) -> list[int]:
    """Return the policy version that sampled each of length tokens.

    spans: (version, start, end) in order, tiling [0, length) without a gap, an overlap or an empty span.
    Raises ValueError where they do not.
    """
    versions: list[int] = []
    for version, start, end in spans:
        if version < 0:
            raise ValueError(f"spans: got version {version}, needs 0 or more")
        if start != len(versions) or not start < end <= length:
            raise ValueError(
                f"spans: got ({version}, {start}, {end}), needs a span that is not empty, from "
                f"{len(versions)} to at most {length}"
            )
        versions += [version] * (end - start)
    if len(versions) != length:
        raise ValueError(f"spans: got {len(versions)} tokens covered, needs {length}")
    return versions


def token_staleness(version: int, versions_T: Tensor) -> Tensor:
    """Return version - versions_T [T]: version is the policy's before the step that trains on the tokens.

    Raises ValueError for a token sampled by a later version, which cannot be.
    """
    staleness_T = version - versions_T
    if bool((staleness_T < 0).any()):
        raise ValueError(f"versions: got a token of version {int(versions_T.max())}, needs at most {version}")
    return staleness_T


def over_age_mask(staleness_T: Tensor, max_staleness: int) -> Tensor:
    """Return [T] bool: the tokens older than max_staleness versions, which must not train."""
    return staleness_T > max_staleness


def summarize(staleness_T: Tensor, mask_T: Tensor) -> StalenessSummary:
    """Summarise the staleness [T] of the tokens in mask_T [T]."""
    age = staleness_T[mask_T.bool()]
    return StalenessSummary(
        tokens=age.numel(),
        total=int(age.sum()),
        largest=int(age.max()) if age.numel() else 0,
        histogram={name: _in_bucket(age, low, high) for name, (low, high) in BUCKETS.items()},
    )


def _in_bucket(age: Tensor, low: int, high: int | None) -> int:
    inside = age >= low if high is None else (age >= low) & (age <= high)
    return int(inside.sum())
