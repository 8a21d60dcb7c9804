"""Compare two mathematical answers: exactly, unless a number has a decimal point. Run it in a killable
process.

The order counts in points, and not in lists. An interval is a set of numbers. In an equation between a name
and its value, the value counts. Numbers are compared by `exact_zero`, functions by SymPy.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import sympy

from slipstream.answers.cpu_limit import cpu_limit
from slipstream.answers.exact_zero import is_zero
from slipstream.answers.latex import parse_answer
from slipstream.answers.latex_input import UnsupportedExpression
from slipstream.answers.latex_operators import constant, matrix
from slipstream.answers.latex_values import (
    UNSOLVED,
    Braces,
    Bracketed,
    Chain,
    Leaf,
    Listing,
    Region,
    Value,
    unfinished,
)
from slipstream.answers.regions import region, same_region
from slipstream.answers.relations import gives_a_value, is_equation, is_trivial, plain, same_relation

WARM: Final = (
    (r"\frac{1}{2}", "0.5"),
    (r"12\sqrt{3}", r"\sqrt{432}"),
    ("x^2+2x+1", "(x+1)^2"),
    ("(1,2]", "1<x"),
    (r"\{1,2\}", "2,1"),
    (r"2\pi", "6.2832"),
    ("x=3", r"3\text{ cm}"),
)
"""Pairs that warm up SymPy: the first of each form takes 0.1 s, later ones 0.001 s."""
POINT_DIGITS: Final = 20
SURELY_APART: Final = 1e-9
"""Relative difference from which on two numbers differ for sure."""
UNEVALUATED: Final = (sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit, sympy.Derivative)

_WITH_UNIT = re.compile(r"([-+]?[0-9][0-9.,]*)\s*(?:[mkcd]?m|[mk]?g|s|h|l|L)")


def equal(expected: str, submitted: str, *, digits: int, computed: bool = False) -> bool:
    """Return whether two normalized expressions are equal, numbers with a decimal point to `digits` decimals.

    `computed`: the answer may not contain uncomputed operations, unless the ground truth contains them too.
    Errors: UnsupportedExpression.
    """
    right, answer = plain(parse_answer(expected)), plain(parse_answer(submitted))
    unit = _WITH_UNIT.fullmatch(submitted)
    if unit and isinstance(right, Leaf) and constant(right.value):
        answer = parse_answer(unit[1])
    counts = _what_counts(right, answer)
    uncomputed = unfinished(counts) - unfinished(right) if computed else ()
    if uncomputed:
        raise UnsupportedExpression(f"still to be computed: {', '.join(sorted(uncomputed))}")
    alike = _compared(right, answer, digits)
    if alike and computed and _numbers(right, of_truth=True) and not _numbers(counts):
        raise UnsupportedExpression("still to be computed: a rational number")
    return alike


def _compared(right: Value, answer: Value, digits: int) -> bool:
    """Compare two values. Errors: UnsupportedExpression if SymPy fails, since a repetition would fail too."""
    try:
        return same(right, answer, digits=digits)
    except (MemoryError, RecursionError, UnsupportedExpression):
        raise
    except Exception as error:
        raise UnsupportedExpression(f"not comparable: {error!s:.80}") from error


def _numbers(value: Value, *, of_truth: bool = False) -> bool:
    """Return whether all values that count are rational numbers or infinity.

    In an equation one side has to be such a number; in the ground truth (`of_truth`) the side that is its
    value.
    """
    match value:
        case Leaf(value=number):
            return constant(number) and bool(number.is_Rational or number.is_infinite)
        case Listing(items) | Bracketed(_, items, _) | Braces(items):
            return all(_numbers(item, of_truth=of_truth) for item in items)
        case Region(numbers):
            return not numbers.atoms(sympy.Pow, sympy.Function, sympy.NumberSymbol, sympy.Symbol)
        case Chain(sides, _) if is_equation(value):
            counting = sides[-1:] if of_truth else sides
            return (not of_truth or gives_a_value(value)) and any(map(_numbers, counting))
        case Chain(sides, _):
            return all(map(_numbers, (side for side in sides if not _has_letters(side))))


def _has_letters(side: Value) -> bool:
    return isinstance(side, Leaf) and not constant(side.value)


def _what_counts(right: Value, answer: Value) -> Value:
    """Return the last side of an equation if the ground truth is no equation, or if both set a name to a
    value."""
    if not isinstance(answer, Chain) or not is_equation(answer):
        return answer
    if not isinstance(right, Chain) or (
        gives_a_value(right) and gives_a_value(answer) and not unfinished(answer) & UNSOLVED
    ):
        return answer.sides[-1]
    return answer


def same(right: Value, answer: Value, *, digits: int) -> bool:
    """Return whether an answer is equal to the ground truth `right`."""
    if isinstance(right, Chain) or isinstance(answer, Chain):
        return _same_chains(right, answer, digits)
    match right, answer:
        case Leaf(), Leaf():
            return _same_leaves(right, answer, digits)
        case Listing(first), Listing(second):
            return _matched(first, second, digits)
        case (Listing(first), Braces(second)) | (Braces(second), Listing(first)):
            return _distinct(first, digits) and _matched(first, _without_repeats(second, digits), digits)
        case Braces(first), Braces(second):
            return _matched(_without_repeats(first, digits), _without_repeats(second, digits), digits)
        case Bracketed(), Bracketed():
            alike_brackets = (right.left, right.right) == (answer.left, answer.right)
            return alike_brackets and _in_order(right.items, answer.items, digits)
        case (Bracketed("(", first, ")"), Listing(second)) | (Listing(first), Bracketed("(", second, ")")):
            return _in_order(first, second, digits)
        case (Braces((Leaf() as one,)), Leaf() as other) | (Leaf() as other, Braces((Leaf() as one,))):
            return _same_leaves(one, other, digits)
    if isinstance(right, Region) or isinstance(answer, Region):
        return _same_regions(right, answer, digits)
    return False


def _same_regions(right: Value, answer: Value, digits: int) -> bool:
    one, other = region(right), region(answer)
    return one is not None and other is not None and same_region(one, other, partial(same, digits=digits))


def _same_chains(right: Value, answer: Value, digits: int) -> bool:
    alike = partial(same, digits=digits)
    if isinstance(right, Chain) and isinstance(answer, Chain):
        return same_relation(right, answer, alike)
    if isinstance(answer, Chain) and is_equation(answer):
        return not is_trivial(answer) and alike(right, answer.sides[-1])
    if isinstance(right, Chain) and is_equation(right):
        return gives_a_value(right) and alike(right.sides[-1], answer)
    if any(isinstance(value, Leaf | Listing | Braces) for value in (right, answer)):
        return False
    return _same_regions(right, answer, digits)


def _in_order(first: Sequence[Value], second: Sequence[Value], digits: int) -> bool:
    return len(first) == len(second) and all(
        same(a, b, digits=digits) for a, b in zip(first, second, strict=True)
    )


def _matched(first: Sequence[Value], second: Sequence[Value], digits: int) -> bool:
    """Return whether the two sequences are equal in some order."""
    if len(first) != len(second):
        return False
    unmatched = list(second)
    for value in first:
        place = next((i for i, other in enumerate(unmatched) if same(value, other, digits=digits)), None)
        if place is None:
            return False
        del unmatched[place]
    return True


def _without_repeats(values: Sequence[Value], digits: int) -> list[Value]:
    distinct: list[Value] = []
    for value in values:
        if not any(same(value, other, digits=digits) for other in distinct):
            distinct.append(value)
    return distinct


def _distinct(values: Sequence[Value], digits: int) -> bool:
    return len(_without_repeats(values, digits)) == len(values)


def _same_leaves(right: Leaf, answer: Leaf, digits: int) -> bool:
    """Compare expressions.

    A number equals 50% if it is 50 or 0.5; two percentages are compared as numbers.
    """
    rounded = digits if right.decimal or answer.decimal else None
    if right.percent is answer.percent or matrix(right.value) or matrix(answer.value):
        return _same_values(right.value, answer.value, rounded)
    percent, number = (right.value, answer.value) if right.percent else (answer.value, right.value)
    return any(_same_values(reading, number, rounded) for reading in (percent, percent / 100))


def _same_values(one: Any, other: Any, digits: int | None) -> bool:
    if matrix(one) or matrix(other):
        if not (matrix(one) and matrix(other) and one.shape == other.shape):
            return False
        return all(_same_values(a, b, digits) for a, b in zip(one.flat(), other.flat(), strict=True))
    one, other = (value.doit() if value.has(*UNEVALUATED) else value for value in (one, other))
    if one == other or _name(one) == _name(other) != "":
        return True
    if isinstance(one, sympy.Symbol) and isinstance(other, sympy.Symbol):
        return False
    if constant(one) and constant(other):
        return same_number(one, other, digits=digits)
    return _same_function(one, other)


def _name(value: Any) -> str:
    """Return the name of a symbol without case, since letters of choices and words ignore case; "" for
    others."""
    return value.name.casefold() if isinstance(value, sympy.Symbol) else "e" if value == sympy.E else ""


def same_number(one: Any, other: Any, *, digits: int | None) -> bool:
    """Return whether two numbers are equal: exactly, or with `digits` to less than one unit of the last
    decimal.

    Rounded numbers also have to agree to half as many significant digits: with 6 decimals 1e-9 is not
    1.01e-9.
    """
    if not (one.is_finite is not False and other.is_finite is not False):
        return bool(one == other)
    difference = one - other
    if digits is None:
        return _near(one, difference) and is_zero(difference)
    distance, size = (
        abs(value) if value.is_Rational else abs(value.evalf(POINT_DIGITS)) for value in (difference, one)
    )
    return bool(
        distance < sympy.Rational(1, 10**digits) and distance <= size * sympy.Float(10) ** (-digits / 2)
    )


def _near(one: Any, difference: Any) -> bool:
    """Return whether the difference may be zero, by its first digits."""
    if difference.is_Rational:
        return True
    distance, size = (abs(complex(value.evalf(POINT_DIGITS))) for value in (difference, one))
    return distance <= SURELY_APART * max(size, 1.0)


def _same_function(one: Any, other: Any) -> bool:
    """Compare functions: first at one point, then by simplifying their difference."""
    difference = one - other
    letters = sorted(difference.free_symbols, key=str)
    point = {letter: sympy.Rational(2 * place + 7, 5) for place, letter in enumerate(letters)}
    try:
        if abs(complex(difference.subs(point).evalf(POINT_DIGITS))) > SURELY_APART:
            return False
    except (TypeError, ValueError, ArithmeticError):
        pass
    return bool(sympy.simplify(difference).is_zero)


def warm_up() -> None:
    """Compare each form of expression once, which fills the caches of SymPy."""
    for expected, submitted in WARM:
        with cpu_limit(10.0):
            equal(expected, submitted, digits=6)
