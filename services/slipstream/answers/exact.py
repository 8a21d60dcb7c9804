"""Compare expressions that need no algebra: equal texts, words, rational numbers, points and sets of
these."""

import re
from fractions import Fraction
from typing import Final

from slipstream.answers.number import NotANumber, read_number

Exact = tuple[str, tuple[Fraction, ...]]
"""The brackets, and the numbers in order."""
MAX_NUMBERS = 16
FEWEST_LETTERS: Final = 3

_LAYOUT = re.compile(r"\\(?:left|right)(?![A-Za-z])|\\[,;:!]|(?<![A-Za-z\\])\s+|\s+(?![A-Za-z])")
_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")
_DIGITS = re.compile(r"\\frac([0-9])([0-9])")
_QUOTED = re.compile(r"\\(?:text|mathrm|textbf|textit|textrm|mbox)\{([^{}]*)\}")
_WORDS = re.compile(r"[A-Za-z][A-Za-z0-9 ,.'-]*")
_PRODUCT = re.compile(r"[a-z]*(?:sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|pi)[a-z]*|[a-z]{1,4}")
_IN_BASE = re.compile(r"\(?([0-9][0-9A-Z]{0,59})\)?_(?:\{([1-9][0-9]?)\}|([2-9]))")
_TIME = re.compile(
    r"(?:\\text\{)?([0-9]{1,2}):([0-9]{2})(?:\\text\{)?\s*(?:([ap])\.?m\.?)?\}?", re.IGNORECASE
)
_NO_OPERAND = r"(?<![0-9A-Za-z._^)}\]])"
_QUOTIENT = re.compile(
    rf"(?:\\frac\{{-?([0-9]{{1,60}})\}}\{{-?([0-9]{{1,60}})\}}"
    rf"|{_NO_OPERAND}([0-9]{{1,60}})/-?([0-9]{{1,60}})(?![0-9.^!]))"
)
_MIXED = re.compile(rf"{_NO_OPERAND}[0-9]{{1,60}}\\frac\{{([0-9]{{1,60}})\}}\{{([0-9]{{1,60}})\}}")
_LIST = re.compile(r"[^(\[{\\]*[0-9],\s")


def exactly_equal(one: str, other: str, *, digits: int) -> bool | None:
    """Return whether two normalized expressions are equal, or None when that takes algebra.

    Percentages with a decimal point are compared to `digits` decimals, and to half as many significant
    digits.
    """
    if not _LIST.match(one) and not _LIST.match(other):
        return _same(_plain(one), _plain(other), digits)
    return True if _plain(one) == _plain(other) else None  # in a list, a comma does not separate thousands


def has_quotient(expression: str) -> bool:
    """Return whether an expression has a quotient that is still to be computed.

    Such are 391/17, which is an integer, and the mixed number 3\\frac{7}{2}, whose fraction is over 1. In an
    equation the last side counts.
    """
    last = _plain(expression).rpartition("=")[2]
    if any(int(above) >= int(below) for above, below in _MIXED.findall(last)):
        return True
    return any(_divides(int(a or c), int(b or d)) for a, b, c, d in _QUOTIENT.findall(last))


def _divides(above: int, below: int) -> bool:
    return below > 1 and above % below == 0


def _same(one: str, other: str, digits: int) -> bool | None:
    if one == other:
        return True
    for compare in (_percentages, _in_base, _words, _times):
        equal = compare(one, other, digits)
        if equal is not None:
            return equal
    first, second = _exact(one), _exact(other)
    if first is None or second is None:
        return None
    if first[0] != second[0]:
        return False if "{}" in (first[0], second[0]) and "" not in (first[0], second[0]) else None
    return first[1] == second[1]


def _plain(expression: str) -> str:
    """Return the expression without layout commands and spaces."""
    plain = _FRACTION.sub(r"\\frac", _LAYOUT.sub("", " ".join(expression.split())))
    return _DIGITS.sub(r"\\frac{\1}{\2}", plain)


def _percentages(one: str, other: str, digits: int) -> bool | None:
    """Compare percentages.

    A number equals 50% if it is 50 or 0.5; two percentages are compared as numbers.
    """
    if "%" not in one and "%" not in other:
        return None
    try:
        (first, of_hundred), (second, percent) = read_number(one), read_number(other)
    except NotANumber:
        return None
    readings = [first] if of_hundred is percent else [first, first * 100 if of_hundred else first / 100]
    if "." not in one and "." not in other:
        return second in readings
    decimals, share = Fraction(1, 2 * 10**digits), Fraction(1, 10 ** (digits // 2))
    return any(abs(reading - second) <= min(decimals, share * abs(reading)) for reading in readings)


def _in_base(one: str, other: str, _digits: int) -> bool | None:
    """Compare numbers with a base, like 1010_2.

    With a base on both sides the values are compared. With a base on one side the digits are compared,
    because the question names the base.
    """
    first, second = _IN_BASE.fullmatch(one), _IN_BASE.fullmatch(other)
    if first is None and second is None:
        return None
    try:
        if first is not None and second is not None:
            return _value(first) == _value(second)
        based, plain = (first, other) if first is not None else (second, one)
        assert based is not None
        return based[1] == plain.strip("()") if plain.strip("()").isalnum() else None
    except ValueError:
        return None


def _value(based: re.Match[str]) -> int:
    return int(based[1], int(based[2] or based[3]))


def _words(one: str, other: str, _digits: int) -> bool | None:
    """Compare words by spelling.

    `AB` and `xyz` may be products, whose order does not matter: None for these.
    """
    first, second = _QUOTED.fullmatch(one), _QUOTED.fullmatch(other)
    spelled = first[1] if first else one, second[1] if second else other
    if not all(_WORDS.fullmatch(text.strip()) for text in spelled):
        return None
    if min(sum(map(str.isalpha, text)) for text in spelled) < FEWEST_LETTERS:
        return True if (first or second) and _folded(spelled[0]) == _folded(spelled[1]) else None
    if not (first or second) and any("," in text or _PRODUCT.fullmatch(text) for text in spelled):
        return True if spelled[0] == spelled[1] else None
    return _folded(spelled[0]) == _folded(spelled[1])


def _folded(text: str) -> str:
    return "".join(text.split()).casefold()


def _times(one: str, other: str, _digits: int) -> bool | None:
    """Compare times of day, recognised by `:00` or `a.m.`; 3:4 is a ratio."""
    first, second = _TIME.fullmatch(one), _TIME.fullmatch(other)
    if not any(time is not None and (time[2] == "00" or time[3]) for time in (first, second)):
        return None
    if first is None or second is None:
        return False
    halves = {half.lower() for half in (first[3], second[3]) if half}
    return (int(first[1]), first[2]) == (int(second[1]), second[2]) and len(halves) < 2


def _exact(expression: str) -> Exact | None:
    """Parse rational numbers exactly. Returns None for decimals, which are rounded, and for percentages."""
    if not expression or "." in expression or "%" in expression:
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
    except NotANumber:
        return None
    return brackets, tuple(sorted(set(numbers))) if brackets == "{}" else numbers
