"""Countdown: `24 from 3 8 1:` → `3*8*1`, or any other expression that reaches the target."""

from dataclasses import dataclass
from math import prod

from slipstream.prompts.generated import Puzzle

OPERATORS = "+-*/"
PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A value with its expression, and the operator that it applies last (none for a single number)."""

    value: int
    text: str
    operator: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Countdown:
    """`count` numbers from 1 to `largest`, and a target that one expression over all of them reaches.

    The index of a puzzle encodes its numbers, and then which two terms to combine by which operator, until
    one term is left. Every intermediate value, and so the target, is a positive whole number.
    """

    count: int
    largest: int

    @property
    def name(self) -> str:
        """Name of the task."""
        return "countdown"

    @property
    def space(self) -> int:
        """Number of choices of the numbers, times the number of ways to combine them."""
        return int(self.largest**self.count) * prod(_ways(left) for left in range(2, self.count + 1))

    def at(self, number: int) -> Puzzle:
        """Return the puzzle of an index. All orders of its numbers are on the same side of the split."""
        values: list[int] = []
        for _ in range(self.count):
            number, digit = divmod(number, self.largest)
            values.append(digit + 1)
        target = _combine_all([Term(value=value, text=str(value)) for value in values], number)
        numbers = " ".join(map(str, values))
        return Puzzle(
            text=f"{target.value} from {numbers}:",
            answer=str(target.value),
            canonical=f"{target.value} from {sorted(values)}",
            demonstration=target.text,
            fields={"numbers": numbers},
        )


def _ways(terms: int) -> int:
    """Return the number of ordered pairs of terms, times the number of operators."""
    return terms * (terms - 1) * len(OPERATORS)


def _combine_all(terms: list[Term], number: int) -> Term:
    while len(terms) > 1:
        number, way = divmod(number, _ways(len(terms)))
        pair, operator = divmod(way, len(OPERATORS))
        first, second = divmod(pair, len(terms) - 1)
        left = terms.pop(first)
        right = terms.pop(second)
        terms.append(_combine(left, right, operator))
    return terms[0]


def _combine(left: Term, right: Term, first_choice: int) -> Term:
    """Combine two terms by the chosen operator, or by the next one whose value is positive and whole."""
    for operator in OPERATORS[first_choice:] + OPERATORS[:first_choice]:
        value = _apply(operator, left.value, right.value)
        if value is not None:
            break
    assert value is not None, "the values of addition and multiplication are positive and whole"
    text = f"{_operand(left, operator)}{operator}{_operand(right, operator, after=True)}"
    return Term(value=value, text=text, operator=operator)


def _apply(operator: str, left: int, right: int) -> int | None:
    if operator == "+":
        return left + right
    if operator == "*":
        return left * right
    if operator == "-":
        return left - right if left > right else None
    return left // right if left % right == 0 else None


def _operand(term: Term, operator: str, *, after: bool = False) -> str:
    """Return the expression of a term, in parentheses if they are needed to keep its value."""
    inner, outer = PRECEDENCE[term.operator], PRECEDENCE[operator]
    needs_parentheses = inner < outer or (after and inner == outer and operator in "-/")
    return f"({term.text})" if needs_parentheses else term.text
