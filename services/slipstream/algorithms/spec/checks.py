"""The range checks that every specification runs on itself."""

import math
from typing import Final

STRICT: Final = {"extra": "forbid"}
"""The pydantic configuration of every specification: an unknown key is an error."""


def require_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise ValueError unless value is one of choices (True is not 1)."""
    if isinstance(value, bool) or value not in choices:
        raise ValueError(f"{name}: got {value!r}, needs one of {', '.join(map(repr, choices))}")


def require_positive(name: str, value: object, *, at_most: float | None = None) -> None:
    """Raise ValueError unless value is a finite number in (0, at_most]."""
    limit = "" if at_most is None else f" of at most {at_most:g}"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:  # type: ignore[arg-type, operator]
        raise ValueError(f"{name}: got {value!r}, needs a finite number above 0{limit}")
    if at_most is not None and value > at_most:  # type: ignore[operator]
        raise ValueError(f"{name}: got {value!r}, needs a finite number above 0{limit}")


def require_integer(name: str, value: object, *, at_least: int) -> None:
    """Raise ValueError unless value is an integer of at least at_least."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"{name}: got {value!r}, needs an integer of at least {at_least}")
