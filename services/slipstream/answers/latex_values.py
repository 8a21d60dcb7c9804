"""What a mathematical answer may be: an expression, a list, a point or interval, a set, a relation."""

from dataclasses import dataclass
from typing import Any, Final

import sympy
from sympy.core.function import AppliedUndef

UNSOLVED: Final = frozenset({"a relation that is to be solved"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One expression or matrix of SymPy, with what its writing says beyond its value."""

    value: Any
    decimal: bool = False
    """Whether a number in it has a decimal point, so that it may be rounded."""
    percent: bool = False
    """Whether a percent sign stands behind; the value is then the number before it."""
    unfinished: frozenset[str] = frozenset()
    """Kinds of operations in it that are still to be carried out."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Values with commas, semicolons, `and` or `or` between them; order is of no account, number is."""

    items: tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Bracketed:
    """Values in order in round or square brackets: a point, or the interval between two."""

    left: str
    items: tuple["Value", ...]
    right: str


@dataclass(frozen=True, slots=True)
class Braces:
    """A set of values that are listed; neither order nor number is of account."""

    items: tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A set of numbers that was made of others, or has a name."""

    value: sympy.Set
    decimal: bool = False
    unfinished: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Chain:
    """Sides with one of = < > <= >= != ~ between each two."""

    sides: tuple["Value", ...]
    signs: tuple[str, ...]


Value = Leaf | Listing | Bracketed | Braces | Region | Chain


def unfinished(value: Value) -> frozenset[str]:
    """Kinds of operations that are still to be carried out anywhere in a value."""
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
    """Whether a relation of one letter has anything but the letter, or a function of it, against numbers."""
    sides = [side.value for side in chain.sides if isinstance(side, Leaf)]
    with_letters = [side for side in sides if side.free_symbols]
    if len(sides) < len(chain.sides) or len(frozenset().union(*(side.free_symbols for side in sides))) != 1:
        return False
    if isinstance(sides[0], AppliedUndef):
        return False
    return len(with_letters) != 1 or not isinstance(with_letters[0], sympy.Symbol)


def has_decimal(value: Value) -> bool:
    """Whether a number anywhere in a value has a decimal point."""
    match value:
        case Leaf() | Region():
            return value.decimal
        case Listing(items) | Bracketed(_, items, _) | Braces(items) | Chain(items, _):
            return any(map(has_decimal, items))
