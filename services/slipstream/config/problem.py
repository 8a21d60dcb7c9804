"""One thing that is wrong with a configuration."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong: which key, why, and what to do. A note does not stop the run."""

    key: str
    reason: str
    remedy: str
    severity: Literal["error", "note"] = "error"

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}; {self.remedy}"
