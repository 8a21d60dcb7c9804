"""Sets of numbers: intervals, inequalities of one variable, listed sets, and their combinations."""

from typing import Any, Final

import sympy

from slipstream.answers import latex_operators, latex_values

INEQUALITIES: Final = {"<": sympy.Lt, ">": sympy.Gt, "<=": sympy.Le, ">=": sympy.Ge, "!=": sympy.Ne}


def region(value: latex_values.Value) -> latex_values.Region | None:
    """Return the set of numbers that a value stands for, which may be empty; None for other values."""
    match value:
        case latex_values.Region():
            return value
        case latex_values.Braces(items) if all(isinstance(item, latex_values.Leaf) for item in items):
            leaves = [item for item in items if isinstance(item, latex_values.Leaf)]
            return latex_values.Region(
                sympy.FiniteSet(*(leaf.value for leaf in leaves)), latex_values.has_decimal(value)
            )
        case latex_values.Bracketed(left, (latex_values.Leaf() as first, latex_values.Leaf() as last), right):
            return _interval(left, first, last, right)
        case latex_values.Chain():
            return _solution(value)
    return None


def same_region(one: latex_values.Region, other: latex_values.Region, same: Any) -> bool:
    """Return whether two non-empty sets of numbers are equal; their bounds are compared by `same`."""
    if one.value is sympy.S.EmptySet or other.value is sympy.S.EmptySet:
        return False
    if one.value == other.value:
        return True
    first, second = _pieces(one.value), _pieces(other.value)
    if first is not None and second is not None and len(first) == len(second):
        return all(
            a[:2] == b[:2]
            and all(
                same(
                    latex_values.Leaf(value=left, decimal=one.decimal),
                    latex_values.Leaf(value=right, decimal=other.decimal),
                )
                for left, right in zip(a[2:], b[2:], strict=True)
            )
            for a, b in zip(first, second, strict=True)
        )
    return bool(one.value.symmetric_difference(other.value).is_empty)


def _interval(
    left: str, first: latex_values.Leaf, last: latex_values.Leaf, right: str
) -> latex_values.Region | None:
    try:
        interval = sympy.Interval(first.value, last.value, left_open=left == "(", right_open=right == ")")
    except (TypeError, ValueError):
        return None
    return latex_values.Region(interval, first.decimal or last.decimal)


def _solution(chain: latex_values.Chain) -> latex_values.Region | None:
    """Return the solutions of an inequality of one variable; None if it has no such form."""
    if not all(sign in INEQUALITIES for sign in chain.signs):
        return None
    sides = [
        side.value
        for side in chain.sides
        if isinstance(side, latex_values.Leaf) and latex_operators.is_expression(side.value)
    ]
    letters = frozenset().union(*(side.free_symbols for side in sides)) if sides else frozenset()
    if len(sides) != len(chain.sides) or len(letters) != 1:
        return None
    try:
        parts = [
            INEQUALITIES[sign](left, right)
            for left, sign, right in zip(sides[:-1], chain.signs, sides[1:], strict=True)
        ]
        return latex_values.Region(
            sympy.And(*parts).as_set(), latex_values.has_decimal(chain), latex_values.unfinished(chain)
        )
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return None


def _pieces(numbers: sympy.Set) -> list[tuple[Any, ...]] | None:
    """Return the intervals and numbers of a set in order: (left open, right open, start, end).

    None for other sets.
    """
    pieces: list[tuple[Any, ...]] = []
    for part in numbers.args if isinstance(numbers, sympy.Union) else (numbers,):
        if isinstance(part, sympy.Interval):
            pieces.append((bool(part.left_open), bool(part.right_open), part.start, part.end))
        elif isinstance(part, sympy.FiniteSet):
            pieces += [(False, False, number, number) for number in part.args]
        else:
            return None
    try:
        return sorted(pieces, key=lambda piece: (float(piece[2]), float(piece[3])))
    except (TypeError, ValueError):
        return None
