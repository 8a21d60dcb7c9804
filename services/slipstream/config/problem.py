"""One fault of a configuration, with a field each for the key, the reason and the remedy."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One fault: the key, why its value cannot stay, and what to do. A note does not stop the run."""

    key: str
    """Dotted key; empty for a fault of the whole file."""
    reason: str
    remedy: str = ""
    """Empty where the reason implies it."""
    severity: Literal["error", "note"] = "error"

    def __str__(self) -> str:
        where = f"{self.key}: " if self.key else ""
        return f"{where}{self.reason}; {self.remedy}" if self.remedy else f"{where}{self.reason}"


class Invalid(ValueError):
    """The error of a wrong value, with the fields of a Problem. `explain` makes a Problem of it.

    `key` is needed where the key at fault is not the section that is validated. `remedy` is empty where the
    reason implies it.
    """

    def __init__(self, reason: str, *, remedy: str = "", key: str = "") -> None:
        super().__init__(str(Problem(key=key, reason=reason, remedy=remedy)))
        self.key, self.reason, self.remedy = key, reason, remedy
