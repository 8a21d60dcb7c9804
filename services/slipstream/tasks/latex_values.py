"""What a mathematical answer may be: an expression, a list, a point or interval, a set, a relation."""

from dataclasses import dataclass
from typing import Any

import sympy


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
        case Listing(items) | Bracketed(_, items, _) | Braces(items) | Chain(items, _):
            return frozenset().union(*map(unfinished, items))
        case Region():
            return frozenset()


def has_decimal(value: Value) -> bool:
    """Whether a number anywhere in a value has a decimal point."""
    match value:
        case Leaf() | Region():
            return value.decimal
        case Listing(items) | Bracketed(_, items, _) | Braces(items) | Chain(items, _):
            return any(map(has_decimal, items))
