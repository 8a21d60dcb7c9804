"""Sorting: `sort 5 3 9 1:` → `1359`."""

from dataclasses import dataclass

from slipstream.prompts.generated import Puzzle


@dataclass(frozen=True, slots=True, kw_only=True)
class SortDigits:
    """`length` digits in any order, with repetition."""

    length: int

    @property
    def name(self) -> str:
        """Name of the task."""
        return "sort_digits"

    @property
    def space(self) -> int:
        """Number of sequences of digits."""
        return int(10**self.length)

    def at(self, number: int) -> Puzzle:
        """Return the puzzle of a number. All orders of its digits are on the same side of the split."""
        digits = f"{number:0{self.length}d}"
        answer = "".join(sorted(digits))
        return Puzzle(
            text=f"sort {' '.join(digits)}:", answer=answer, canonical=f"sort {answer}", demonstration=answer
        )
