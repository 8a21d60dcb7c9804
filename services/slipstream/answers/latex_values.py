"""The forms of a mathematical answer: an expression, a list, a point or interval, a set, a relation."""

from dataclasses import dataclass
from typing import Any, Final

import sympy
from sympy.core.function import AppliedUndef

UNSOLVED: Final = frozenset({"a relation that is to be solved"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One expression or matrix of SymPy, with facts about its notation."""

    value: Any
    decimal: bool = False
    """Whether a number in it has a decimal point, so that it may be rounded."""
    percent: bool = False
    """Whether a percent sign follows; `value` is the number before the sign."""
    unfinished: frozenset[str] = frozenset()
    """Kinds of operations that the answer has left uncomputed."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Values separated by commas, semicolons, `and` or `or`. Repetitions count, and the order does not."""

    items: tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Bracketed:
    """Values in order in round or square brackets: a point, or the interval between two."""

    left: str
    items: tuple["Value", ...]
    right: str


@dataclass(frozen=True, slots=True)
class Braces:
    """A set of listed values. Neither the order nor repetitions count."""

    items: tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A set of numbers: a named set, or a combination of other sets."""

    value: sympy.Set
    decimal: bool = False
    unfinished: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Chain:
    """A relation: sides, and between each two one of = < > <= >= != ~."""

    sides: tuple["Value", ...]
    signs: tuple[str, ...]


Value = Leaf | Listing | Bracketed | Braces | Region | Chain


def unfinished(value: Value) -> frozenset[str]:
    """Return the kinds of operations that are left uncomputed anywhere in a value."""
    match value:
        case Leaf():
            return value.unfinished
        case Listing(items) | Bracketed(_, items, _) | Braces(items):
            return frozenset().union(*map(unfinished, items))
        case Chain(items, _):
            return frozenset().union(*map(unfinished, items), UNSOLVED if _is_unsolved(value) else ())
        case Region():
            return value.unfinished


def _is_unsolved(chain: Chain) -> bool:
    """Return whether a relation of one variable is not solved for it (2x = 6, and not x = 3 or f(x) = 3)."""
    sides = [side.value for side in chain.sides if isinstance(side, Leaf)]
    with_letters = [side for side in sides if side.free_symbols]
    if len(sides) < len(chain.sides) or len(frozenset().union(*(side.free_symbols for side in sides))) != 1:
        return False
    if isinstance(sides[0], AppliedUndef):
        return False
    return len(with_letters) != 1 or not isinstance(with_letters[0], sympy.Symbol)


def has_decimal(value: Value) -> bool:
    """Return whether any number in a value has a decimal point."""
    match value:
        case Leaf() | Region():
            return value.decimal
        case Listing(items) | Bracketed(_, items, _) | Braces(items) | Chain(items, _):
            return any(map(has_decimal, items))
