"""Decide exactly whether a number is zero, at a cost that is bounded by the sizes of its parts.

Rational numbers are compared exactly. For an algebraic number, the expression gives a lower bound on its
absolute value if it is not zero; the number is evaluated to more digits than this bound. See "A Separation
Bound for Real Algebraic Expressions", C. Burnikel, S. Funke, K. Mehlhorn, S. Schirra, S. Schmitt, ESA 2001.
For transcendental numbers no such bound is known; they are evaluated to several times the digits of their
parts.
"""

from dataclasses import dataclass
from math import inf, log2
from typing import Any, Final

import sympy

MOST_DIGITS: Final = 20_000
"""A number that would need more digits counts as different from zero."""
FIRST_DIGITS: Final = 30
TRANSCENDENTAL_FACTOR: Final = 4
LEAST_TRANSCENDENTAL: Final = 200
EXPONENTIAL: Final = (sympy.exp, sympy.sinh, sympy.cosh, sympy.tanh, sympy.coth, sympy.gamma)
"""Functions whose distance to a number can be as small as exp(-argument)."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """A bound for an algebraic number above / below: bits of all conjugates of each part, and its roots."""

    above: float
    below: float
    roots: frozenset[Any] = frozenset()


def is_zero(number: Any) -> bool:
    """Return whether a number without variables is zero. Errors: TypeError when it has no value."""
    if number.is_Rational:
        return bool(number == 0)
    first = abs(number.evalf(FIRST_DIGITS, maxn=2 * FIRST_DIGITS))
    if not first.is_comparable and not first.is_zero:
        if number.has(sympy.oo, -sympy.oo):
            return False
    elif first > sympy.Float(10) ** -FIRST_DIGITS and first._prec > 1:
        return False
    digits = _digits(number)
    if digits > MOST_DIGITS:
        return False
    value = number.evalf(15, maxn=int(digits) + 30)
    size = abs(value)
    return bool(size < sympy.Float(10) ** -int(digits + 2))


def _digits(number: Any) -> float:
    try:
        bound = _bound(number)
    except ValueError:
        return LEAST_TRANSCENDENTAL + TRANSCENDENTAL_FACTOR * _sizes(number)
    degree = 1
    for root in bound.roots:
        degree *= root[1]
    return ((degree - 1) * max(bound.above, 0.0) + max(bound.below, 0.0)) / log2(10) + 2


def _bound(number: Any) -> _Bound:
    """Return the bound.

    Errors: ValueError for a number that is not built from integers by + - * / and roots.
    """
    if number is sympy.I:
        return _Bound(0.0, 0.0, frozenset({(sympy.S.NegativeOne, 2)}))
    if number.is_Rational:
        return _Bound(_bits(number.p), _bits(number.q))
    if number.is_Add or number.is_Mul:
        parts = [_bound(part) for part in number.args]
        roots = frozenset().union(*(part.roots for part in parts))
        below = sum(part.below for part in parts)
        if number.is_Mul:
            return _Bound(sum(part.above for part in parts), below, roots)
        largest = max(part.above - part.below for part in parts)
        return _Bound(largest + below + log2(len(parts)), below, roots)
    if number.is_Pow and number.exp.is_Rational:
        return _power(_bound(number.base), number)
    raise ValueError("not built from integers by arithmetic and roots")


def _power(base: _Bound, power: Any) -> _Bound:
    times, degree = abs(power.exp.p), power.exp.q
    above, below = (base.above, base.below) if power.exp.p > 0 else (base.below, base.above)
    above, below, roots = above * times, below * times, base.roots
    if degree == 1:
        return _Bound(above, below, roots)
    roots |= {(power.base, degree)}
    if above >= below:  # (u l^(k-1))^(1/k) over l
        return _Bound((above + (degree - 1) * below) / degree, below, roots)
    return _Bound(above, (above * (degree - 1) + below) / degree, roots)


def _bits(number: int) -> float:
    return log2(abs(number)) if abs(number) < 2**1000 else float(abs(number).bit_length()) if number else 0.0


def _sizes(number: Any) -> float:
    """Return the sum, over all parts of a number, of their decimal digits before or after the point."""
    digits = 0.0
    for part in sympy.preorder_traversal(number):
        value = part.evalf(3)
        if value.is_zero or not value.is_number:
            continue
        size = abs(value)
        digits += abs(float(sympy.log(size, 10).evalf(3))) if size.is_finite else inf
        if part.is_Rational and not part.is_Integer:
            digits += len(str(part.q))
        if isinstance(part, EXPONENTIAL):
            digits += abs(float(sympy.Abs(part.args[0]).evalf(3)))
    return digits
