"""Encode a program's value as JSON tagged by type.

It runs in the program's process: do not trust the result.
"""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_DEPTH = 64
EXACT_INTEGER = 2**53


def to_plain(value: Any, depth: int = 0) -> Any:
    """Return a value as tagged JSON; an object of an unknown type becomes {"o": name of the type}."""
    if depth > MAX_DEPTH:
        return {"o": "deep"}
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        number = int.__index__(value)
        return number if abs(number) < EXACT_INTEGER else {"i": format(number, "x")}
    if isinstance(value, float):
        return float.__float__(value) if math.isfinite(value) else {"f": float.__repr__(value)}
    if isinstance(value, complex):
        return {"c": [to_plain(value.real), to_plain(value.imag)]}
    if isinstance(value, Decimal | Fraction) and value == float(value):
        return to_plain(float(value))
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray):
        return {"b": value.hex()}
    if isinstance(value, dict):
        pairs = [[to_plain(key, depth + 1), to_plain(item, depth + 1)] for key, item in dict.items(value)]
        return {"d": pairs}
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        plain = value.tolist()
        if value.ndim == 0:
            return to_plain(plain, depth + 1)
        return {"a": [to_plain(item, depth + 1) for item in plain]}
    for tag, kind in (("l", list), ("t", tuple), ("s", set), ("s", frozenset)):
        if isinstance(value, kind):
            return {tag: [to_plain(item, depth + 1) for item in kind.__iter__(value)]}  # type: ignore[arg-type]
    return {"o": type(value).__name__}
