"""Compare equations and inequalities, and decide which side of an equation is its value.

Two relations are not equal just because neither has a solution: relations without variables are compared side
by side.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import sympy
from sympy.core.function import AppliedUndef

from slipstream.answers.latex_operators import constant, is_expression
from slipstream.answers.latex_values import Bracketed, Chain, Leaf, Value
from slipstream.answers.regions import region, same_region

Same = Callable[[Value, Value], bool]
MIRRORED: Final = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
FAR_APART: Final = 0.01
"""Relative difference from which on one number cannot be a rounding of the other."""


def plain(value: Value) -> Value:
    """Return the exact side of an approximation (~), or the rounded side if the first side is a name."""
    if not isinstance(value, Chain) or "~" not in value.signs:
        return value
    place = value.signs.index("~")
    first = Chain(value.sides[: place + 1], value.signs[:place]) if place else value.sides[0]
    return value.sides[-1] if not place and _is_name(first) else first


def is_equation(value: Value) -> bool:
    """Return whether all signs of a relation are equals signs."""
    return isinstance(value, Chain) and set(value.signs) == {"="}


def is_assignment(value: Value) -> bool:
    """Return whether a name is set to a value: x = 5, f(x) = x^2, |AB| = 5, (x, y) = (1, 2)."""
    return isinstance(value, Chain) and is_equation(value) and _is_name(value.sides[0])


def gives_a_value(chain: Chain) -> bool:
    """Return whether the last side of an equation is its value: x = 5, 40 + 2 = 42; not a = b = c."""
    if len(chain.sides) > 2 and all(map(_is_name, chain.sides)):
        return False
    numbers = all(isinstance(side, Leaf) and constant(side.value) for side in chain.sides)
    return is_equation(chain) and (is_assignment(chain) or (numbers and not is_trivial(chain)))


def is_trivial(chain: Chain) -> bool:
    """Return whether an equation is false (1 = 2, x = 1 = 2, x + 1 = x) or true for any x (x = x)."""
    values = [side.value for side in chain.sides if isinstance(side, Leaf)]
    if len(values) != len(chain.sides):
        return False
    if any(_far_apart(one, other) for one, other in pairwise(values) if constant(one) and constant(other)):
        return True
    if all(map(constant, values)):
        return False
    if not all(is_expression(value) for value in values):
        return False
    difference = sympy.expand(values[0] - values[-1])
    return bool(values[0] == values[-1] or (constant(difference) and difference != 0))


def same_relation(right: Chain, answer: Chain, same: Same) -> bool:
    """Return whether two relations are equivalent."""
    if _side_by_side(right, answer, same):
        return True
    if not (_letters(right) and _letters(answer)):
        return False
    if len(right.sides) > 2 and not _letters(right) <= _letters(answer):
        return False  # a = c does not imply a = b = c
    if is_equation(right) and is_equation(answer):
        return not is_trivial(answer) and _same_equation(right, answer, same)
    one, other = region(right), region(answer)
    if one is not None and other is not None:
        return _letters(right) == _letters(answer) and same_region(one, other, same)
    return _same_difference(right, answer)


def _side_by_side(right: Chain, answer: Chain, same: Same) -> bool:
    if len(right.sides) != len(answer.sides):
        return False
    mirrored = tuple(MIRRORED.get(sign, sign) for sign in reversed(answer.signs))
    for signs, sides in ((answer.signs, answer.sides), (mirrored, answer.sides[::-1])):
        if signs == right.signs and all(map(same, right.sides, sides)):
            return True
    return False


def _same_equation(right: Chain, answer: Chain, same: Same) -> bool:
    if is_assignment(right) and is_assignment(answer) and same(right.sides[0], answer.sides[0]):
        return same(right.sides[-1], answer.sides[-1])
    one, other = _difference(right), _difference(answer)
    if one is None or other is None or not one.free_symbols:
        return False
    first, second = (sympy.fraction(sympy.together(side))[0].expand() for side in (one, other))
    if first == 0 or second == 0:
        return False
    ratio = sympy.simplify(first / second)
    if constant(ratio) and ratio != 0:
        return True
    return one.free_symbols == other.free_symbols and _same_solutions(one, other, right, same)


def _same_solutions(one: Any, other: Any, right: Chain, same: Same) -> bool:
    """Return whether both equations have the same solutions, at least one, for the name on the left or a
    letter."""
    name = right.sides[0]
    has_name = is_assignment(right) and isinstance(name, Leaf) and isinstance(name.value, sympy.Symbol)
    letter = name.value if has_name and isinstance(name, Leaf) else min(one.free_symbols, key=str)
    try:
        first, second = (sympy.solve(side, letter) for side in (one, other))
    except NotImplementedError:
        return False
    if not first or len(first) != len(second):
        return False
    return all(any(same(Leaf(value=a), Leaf(value=b)) for b in second) for a in first)


def _same_difference(right: Chain, answer: Chain) -> bool:
    """Return whether one inequality is the other times a positive number, or mirrored times a negative
    one."""
    one, other = _difference(right), _difference(answer)
    if one is None or other is None or len(right.signs) != 1 or other == 0:
        return False
    ratio = sympy.simplify(one / other)
    if not constant(ratio) or not ratio.is_nonzero:
        return False
    sign = answer.signs[0] if ratio.is_positive else MIRRORED.get(answer.signs[0], answer.signs[0])
    return sign == right.signs[0]


def _difference(chain: Chain) -> Any:
    first, last = chain.sides[0], chain.sides[-1]
    if not (isinstance(first, Leaf) and isinstance(last, Leaf)):
        return None
    if not all(is_expression(side.value) for side in (first, last)):
        return None
    return first.value - last.value


def _letters(value: Value) -> frozenset[Any]:
    match value:
        case Leaf():
            return frozenset(value.value.free_symbols) | frozenset(value.value.atoms(AppliedUndef))
        case Chain(items, _) | Bracketed(_, items, _):
            return frozenset().union(*map(_letters, items))
    return frozenset()


def _is_name(value: Value) -> bool:
    match value:
        case Bracketed(_, items, _):
            return all(map(_is_name, items))
        case Leaf() if is_expression(value.value):
            return all(_is_factor(factor) for factor in sympy.Mul.make_args(value.value))
    return False


def _is_factor(value: Any) -> bool:
    if isinstance(value, sympy.Abs):
        return all(map(_is_factor, sympy.Mul.make_args(value.args[0])))
    if isinstance(value, sympy.Pow) and value.exp.is_Integer:
        return _is_factor(value.base)
    return isinstance(value, sympy.Symbol | AppliedUndef) or value in (sympy.E, sympy.I)


def _far_apart(one: Any, other: Any) -> bool:
    """Return whether two numbers differ, even if one is in degrees and the other in radians."""
    try:
        first, second = complex(one.evalf(15)), complex(other.evalf(15))
    except (TypeError, ValueError):
        return False
    degrees = 57.29577951308232
    return all(
        abs(first * factor - second) > FAR_APART * max(abs(first * factor), abs(second))
        for factor in (1, degrees, 1 / degrees)
    )
