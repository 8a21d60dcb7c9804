"""Are two mathematical answers equal? Exactly, unless a number has a decimal point; in a killable process.

Lists have no order and points have one; an interval is a set of numbers; of an equation between a name and
its value the value counts. Numbers are compared by `exact_zero`, functions by the algebra of SymPy.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import sympy

from slipstream.answers.cpu_limit import cpu_limit
from slipstream.answers.exact_zero import is_zero
from slipstream.answers.latex import parsed
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
from slipstream.answers.relations import gives_a_value, is_equation, is_tautology, plain, same_relation

WARM: Final = (
    (r"\frac{1}{2}", "0.5"),
    (r"12\sqrt{3}", r"\sqrt{432}"),
    ("x^2+2x+1", "(x+1)^2"),
    ("(1,2]", "1<x"),
    (r"\{1,2\}", "2,1"),
    (r"2\pi", "6.2832"),
    ("x=3", r"3\text{ cm}"),
)
"""The first of each form costs a tenth of a second, and later ones a thousandth."""
POINT_DIGITS: Final = 20
SURELY_APART: Final = 1e-9
"""Share of their size by which numbers differ that need no closer look."""
UNEVALUATED: Final = (sympy.Integral, sympy.Sum, sympy.Product, sympy.Limit, sympy.Derivative)

_WITH_UNIT = re.compile(r"([-+]?[0-9][0-9.,]*)\s*(?:[mkcd]?m|[mk]?g|s|h|l|L)")


def equal(expected: str, given: str, *, digits: int, computed: bool = False) -> bool:
    """Whether two readable expressions are equal, numbers with a decimal point to `digits` decimals.

    With `computed` an answer may not leave operations to do that the ground truth does not have itself.
    Errors: UnsupportedExpression.
    """
    right, answer = plain(parsed(expected)), plain(parsed(given))
    unit = _WITH_UNIT.fullmatch(given)
    if unit and isinstance(right, Leaf) and constant(right.value):
        answer = parsed(unit[1])
    counts = _what_counts(right, answer)
    left = unfinished(counts) - unfinished(right) if computed else ()
    if left:
        raise UnsupportedExpression(f"still to be computed: {', '.join(sorted(left))}")
    alike = _compared(right, answer, digits)
    if alike and computed and _numbers(right, of_truth=True) and not _numbers(counts):
        raise UnsupportedExpression("still to be computed: a rational number")
    return alike


def _compared(right: Value, answer: Value, digits: int) -> bool:
    """Errors: UnsupportedExpression for what SymPy fails on, which would fail again."""
    try:
        return same(right, answer, digits=digits)
    except (MemoryError, RecursionError, UnsupportedExpression):
        raise
    except Exception as error:
        raise UnsupportedExpression(f"not comparable: {error!s:.80}") from error


def _numbers(value: Value, *, of_truth: bool = False) -> bool:
    """Whether all values that count are written as rational numbers or infinity, or read as such.

    Of an equation one side has to be, of the ground truth the one that is the value.
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
    """The last side of an equation, where the ground truth is none, or both give a value to a name."""
    if not isinstance(answer, Chain) or not is_equation(answer):
        return answer
    if not isinstance(right, Chain) or (
        gives_a_value(right) and gives_a_value(answer) and not unfinished(answer) & UNSOLVED
    ):
        return answer.sides[-1]
    return answer


def same(right: Value, answer: Value, *, digits: int) -> bool:
    """Whether an answer is equal to the ground truth; the latter comes first."""
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
        return not is_tautology(answer) and alike(right, answer.sides[-1])
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
    """Whether each value of one has one of its own in the other."""
    if len(first) != len(second):
        return False
    left = list(second)
    for value in first:
        place = next((place for place, other in enumerate(left) if same(value, other, digits=digits)), None)
        if place is None:
            return False
        del left[place]
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
    """50% is 50 and 0.5; of two percentages the numbers before the sign count."""
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
    """Letters, of which a choice is one, and words are the same in both cases."""
    return value.name.casefold() if isinstance(value, sympy.Symbol) else "e" if value == sympy.E else ""


def same_number(one: Any, other: Any, *, digits: int | None) -> bool:
    """Whether two numbers are equal: exactly, or with `digits` to less than one of the last decimal.

    A rounded number keeps half as many digits of its own: with 6 decimals 1e-9 is not 1.01e-9.
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
    """Whether a difference needs a closer look, by its first digits."""
    if difference.is_Rational:
        return True
    distance, size = (abs(complex(value.evalf(POINT_DIGITS))) for value in (difference, one))
    return distance <= SURELY_APART * max(size, 1.0)


def _same_function(one: Any, other: Any) -> bool:
    """Apart at one point they are two; else what a simplification of their difference says."""
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
    """Meet each form of expression once."""
    for expected, given in WARM:
        with cpu_limit(10.0):
            equal(expected, given, digits=6)
