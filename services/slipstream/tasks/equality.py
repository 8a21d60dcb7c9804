"""Are two mathematical expressions equal? By math-verify, in a process that can be killed.

See Math-Verify 0.9, https://github.com/huggingface/Math-Verify. Its search for an expression in a text is
not used: an expression is read whole or not at all, so that no part of an answer can match.
"""

import logging
from math import isfinite
from typing import Any, Final

from math_verify import verify
from sympy import Expr, Float, I, Rational, Symbol, UnevaluatedExpr

from slipstream.tasks.cpu_limit import cpu_limit
from slipstream.tasks.latex import parsed

POINT_DIGITS: Final = 20
VANISHING: Final = 1e-90
SMALLEST: Final = 1e-60
EXACT_SHARE: Final = 1e-9
"""Exact numbers that differ by more than this share of their size are two."""
DECIMAL_SHARE: Final = 1e-3
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


def equal(expected: str, given: str, *, digits: int) -> bool:
    """Whether two readable expressions are equal, floats to `digits` decimals. Errors: Refused."""
    right, answer = _complex(parsed(expected)), _complex(parsed(given))
    known = settled(right, answer, digits=digits)
    if known is not None:
        return known
    return bool(
        verify(right, answer, float_rounding=digits, allow_set_relation_comp=True, timeout_seconds=None)
    )


def _complex(expression: Any) -> Any:
    """With the imaginary unit for a letter `i`, so that it can be computed with."""
    if not isinstance(expression, Expr):
        return expression
    units = [symbol for symbol in expression.free_symbols if symbol.name == "i"]
    return expression.subs({unit: I for unit in units}) if units else expression


def settled(one: Any, other: Any, *, digits: int) -> bool | None:
    """What the values of two numbers, or of two functions at one point, already say; None when nothing.

    Far apart they are not equal, and numbers with a difference that vanishes to 90 decimals are: a tenth of
    the time of a simplification. A number with a decimal point is equal to what differs by less than one of
    its last decimal, and by no more than a thousandth: 1e-9 is not 2e-9. Percentages have two readings, and
    letters may be words: neither is settled.
    """
    if not all(isinstance(side, Expr) and not isinstance(side, Symbol) for side in (one, other)):
        return None
    if one.has(UnevaluatedExpr) or other.has(UnevaluatedExpr):
        return None
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    point = {symbol: Rational(2 * place + 7, 5) for place, symbol in enumerate(symbols)}
    try:
        distance = abs(complex((one - other).subs(point).evalf(POINT_DIGITS)))
        size = 0.0 if symbols else abs(complex(one.evalf(POINT_DIGITS)))
    except (TypeError, ValueError, ArithmeticError):
        return None
    if not isfinite(distance) or not isfinite(size):
        return None
    if symbols:
        return False if distance > 2 * 10.0**-digits else None
    if one.has(Float) or other.has(Float):
        return distance < 10.0**-digits and distance <= DECIMAL_SHARE * size
    if distance > max(EXACT_SHARE * size, VANISHING):
        return False
    return True if distance < VANISHING and size > SMALLEST else None


def warm_up() -> None:
    """Meet each form of expression once."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # its warnings are of a limit that it has not
    for expected, given in WARM:
        with cpu_limit(10.0):
            equal(expected, given, digits=6)
