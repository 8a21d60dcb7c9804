"""Arithmetic on whole numbers, parsed by recursive descent with limits on its size; never `eval`.

    expression = term   { ("+" | "-") term }
    term       = factor { ("*" | "/") factor }
    factor     = number | "(" expression ")"

Spaces may stand between tokens; `×`, `÷` and `−` mean `*`, `/` and `-`. A number is ASCII digits without
leading zeros. There is no sign: a number can be subtracted, but not negated. Values are exact fractions.
"""

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

MAX_CHARACTERS = 256
MAX_DEPTH = 32
MAX_DIGITS = 9

_SIGNS = str.maketrans("×÷−", "*/-")
_TOKEN = re.compile(r"[0-9]+|[-+*/()]")


class InvalidExpression(ValueError):
    """The text is not an expression, exceeds a limit, or divides by zero."""


def evaluate(text: str) -> tuple[Fraction, tuple[int, ...]]:
    """Return the exact value of an expression, and the numbers in it from left to right.

    Errors: InvalidExpression.
    """
    reader = _Reader(_tokens(text))
    value = reader.expression()
    if reader.rest:
        raise InvalidExpression(f"`{reader.rest[-1]}` is left over after the expression")
    return value, tuple(reader.numbers)


def check_countdown(expression: str, numbers: Sequence[int], target: int) -> bool:
    """Return whether the expression equals the target and uses each of the numbers at most once.

    Errors: InvalidExpression when the expression cannot be parsed or divides by zero.
    """
    value, used = evaluate(expression)
    return value == target and Counter(used) <= Counter(numbers)


def _tokens(text: str) -> list[str]:
    if len(text) > MAX_CHARACTERS:
        raise InvalidExpression(f"{len(text)} characters; at most {MAX_CHARACTERS} are read")
    plain = text.translate(_SIGNS)
    tokens = _TOKEN.findall(plain)
    unknown = re.search(r"[^-+*/()0-9 ]", plain)
    if unknown:
        raise InvalidExpression(f"{unknown[0]!a} is not part of an expression")
    return tokens


class _Reader:
    """Consumes tokens from the end of the reversed list; each method parses one line of the grammar."""

    def __init__(self, tokens: list[str]) -> None:
        self.rest = tokens[::-1]
        self.numbers: list[int] = []
        self.depth = 0

    def expression(self) -> Fraction:
        value = self._term()
        while sign := self._take("+-"):
            right = self._term()
            value = value + right if sign == "+" else value - right
        return value

    def _term(self) -> Fraction:
        value = self._factor()
        while sign := self._take("*/"):
            right = self._factor()
            if sign == "/" and right == 0:
                raise InvalidExpression("division by zero")
            value = value * right if sign == "*" else value / right
        return value

    def _factor(self) -> Fraction:
        if not self._take("("):
            return self._number()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise InvalidExpression(f"more than {MAX_DEPTH} parentheses within each other")
        value = self.expression()
        if not self._take(")"):
            raise InvalidExpression("a parenthesis is not closed")
        self.depth -= 1
        return value

    def _number(self) -> Fraction:
        token = self.rest.pop() if self.rest else "the end"
        if not token.isdecimal():
            raise InvalidExpression(f"a number is needed where `{token}` stands")
        if len(token) > MAX_DIGITS or (token[0] == "0" and token != "0"):
            raise InvalidExpression(
                f"`{token[:MAX_DIGITS]}`: a number has at most {MAX_DIGITS} digits and no leading zeros"
            )
        self.numbers.append(int(token))
        return Fraction(self.numbers[-1])

    def _take(self, signs: str) -> str:
        """Consume the next token if it is one of `signs`; empty when it is not."""
        return self.rest.pop() if self.rest and self.rest[-1] in signs else ""
