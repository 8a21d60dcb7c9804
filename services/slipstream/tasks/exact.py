"""Expressions that need no algebra: written alike, or rational numbers, or points or sets of such."""

import re
from fractions import Fraction

from slipstream.tasks.number import NoNumber, read_number

Exact = tuple[str, tuple[Fraction, ...]]
"""The brackets around, and the numbers in order."""
MAX_NUMBERS = 16

_LAYOUT = re.compile(r"\\(?:left|right)(?![A-Za-z])|\\[,;:!]|(?<![A-Za-z\\])\s+|\s+(?![A-Za-z])")
_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")


def exactly_equal(one: str, other: str) -> bool | None:
    """Whether two readable expressions are equal, or None when it takes algebra to say."""
    one, other = _plain(one), _plain(other)
    if one == other:
        return True
    first, second = _exact(one), _exact(other)
    if first is None or second is None or first[0] != second[0]:
        return None
    return first[1] == second[1]


def _plain(expression: str) -> str:
    """Without what is layout only."""
    return _FRACTION.sub(r"\\frac", _LAYOUT.sub("", " ".join(expression.split())))


def _exact(expression: str) -> Exact | None:
    """Not floats, which are compared to some decimals only, nor percent, which has two readings."""
    if "." in expression or "%" in expression:
        return None
    brackets, inside = "", [expression]
    if expression.startswith(r"\{") and expression.endswith(r"\}"):
        brackets, inside = "{}", expression[2:-2].split(",")
    elif expression[0] in "([" and expression[-1] in ")]":
        brackets, inside = expression[0] + expression[-1], expression[1:-1].split(",")
        if not 2 <= len(inside) <= MAX_NUMBERS:
            return None
    try:
        numbers = tuple(read_number(part)[0] for part in inside)
    except NoNumber:
        return None
    return brackets, tuple(sorted(set(numbers))) if brackets == "{}" else numbers
