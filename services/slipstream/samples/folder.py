"""The files of stored completions: `FIRST-LAST.parquet`, the rows of the steps from FIRST to LAST.

Held-out evaluations are in parts of a folder of their own: their steps are the versions that they evaluate.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = "samples"
"""In the directory of a run."""
EVALUATIONS: Final = "evaluations"
"""In FOLDER."""
SUFFIX: Final = ".parquet"


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A file with the rows of some steps."""

    first: int
    last: int
    path: Path

    @property
    def steps(self) -> int:
        """Number of steps from the first to the last."""
        return self.last - self.first + 1

    def contains(self, other: "Part") -> bool:
        """Return whether all steps of another part are also steps of this one."""
        return self.first <= other.first and other.last <= self.last and self.steps > other.steps

    def has_any(self, first: int | None, last: int | None) -> bool:
        """Return whether some of its steps are from `first` to `last`; None is no bound."""
        return (last is None or self.first <= last) and (first is None or first <= self.last)


def parts_of(folder: Path) -> list[Part]:
    """Return the parts of a folder in order, without those that a merged part contains."""
    parts = sorted(filter(None, map(part_of, folder.glob(f"*{SUFFIX}"))))
    return [part for part in parts if not any(other.contains(part) for other in parts)]


def stored_parts(folder: Path) -> list[Part]:
    """Return the parts with the completions of training and evaluations, also while a thread merges some.

    A listing that was made during a merge may have neither the merged part nor its parts. Another listing
    differs from it.
    """
    parts = [*parts_of(folder), *parts_of(folder / EVALUATIONS)]
    while (again := [*parts_of(folder), *parts_of(folder / EVALUATIONS)]) != parts:
        parts = again
    return parts


def part_of(path: Path) -> Part | None:
    """Return the part of a file name; None for a file of another kind."""
    with suppress(ValueError):
        first, last = map(int, path.name.removesuffix(SUFFIX).split("-"))
        return Part(first, last, path)
    return None
