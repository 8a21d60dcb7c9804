"""Expressions that need no algebra: a rational number, or a point or interval of such."""

from fractions import Fraction

from slipstream.tasks.number import NoNumber, read_number

Exact = tuple[str, tuple[Fraction, ...]]
"""The brackets around, and the numbers in order."""
MAX_NUMBERS = 16


def exactly_equal(one: str, other: str) -> bool | None:
    """Whether two readable expressions are equal, or None when it takes algebra to say."""
    if one == other:
        return True
    first, second = _exact(one), _exact(other)
    if first is None or second is None or first[0] != second[0]:
        return None
    return first[1] == second[1]


def _exact(expression: str) -> Exact | None:
    """Not floats, which are compared to some decimals only, nor percent, which has two readings."""
    if "." in expression or "%" in expression:
        return None
    brackets, inside = "", [expression]
    if expression[0] in "([" and expression[-1] in ")]":
        brackets, inside = expression[0] + expression[-1], expression[1:-1].split(",")
        if not 2 <= len(inside) <= MAX_NUMBERS:
            return None
    try:
        return brackets, tuple(read_number(part)[0] for part in inside)
    except NoNumber:
        return None
