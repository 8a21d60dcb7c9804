"""Tasks of digits: addition, `12+34=` → `46`, and sorting, `sort 5 3 9 1:` → `1359`."""

from dataclasses import dataclass

from slipstream.prompts.generated import Puzzle


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """Two numbers of exactly `digits` digits; no leading zeros, but 0 itself has one digit."""

    digits: int

    @property
    def name(self) -> str:
        """Name of the task."""
        return "addition"

    @property
    def space(self) -> int:
        """Number of ordered pairs."""
        return self._numbers**2

    def at(self, number: int) -> Puzzle:
        """Return the puzzle of a number. `a+b` and `b+a` are on the same side of the held-out split."""
        a, b = (self._least + part for part in divmod(number, self._numbers))
        answer = str(a + b)
        return Puzzle(
            text=f"{a}+{b}=", answer=answer, canonical=f"{min(a, b)}+{max(a, b)}=", demonstration=answer
        )

    @property
    def _least(self) -> int:
        return 0 if self.digits == 1 else int(10 ** (self.digits - 1))

    @property
    def _numbers(self) -> int:
        return int(10**self.digits) - self._least


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
