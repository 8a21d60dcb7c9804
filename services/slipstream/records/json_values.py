"""Numbers as strict JSON knows them: finite ones."""

import math
from collections.abc import Mapping
from typing import Any


def finite(value: Any) -> Any:
    """Return a value with null in place of each number that is not finite, in lists and mappings too."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list | tuple) else value


def finite_number(value: Any) -> float | None:
    """Return a value as a float; None for what is no number, is not finite, or is too large for a float."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
