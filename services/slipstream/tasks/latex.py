"""From LaTeX to an expression of SymPy, by the parser of math-verify with numbers that are read faster.

SymPy makes a number of a text by importing all of its names and evaluating it, which is two thirds of the
time of a parse. See latex2sympy2_extended 1.11, https://github.com/huggingface/latex2sympy2_extended.
"""

from functools import lru_cache
from typing import Any, Final

import sympy
from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy, normalize_latex
from math_verify import LatexExtractionConfig
from math_verify.grader import should_treat_as_complex
from math_verify.parser import get_last_eq

from slipstream.tasks.mathematics import Refused

NORMALIZATION: Final = LatexExtractionConfig().normalization_config


class _Reader(_Latex2Sympy):  # type: ignore[misc]
    """The parser, whose whole numbers and decimals need no evaluation."""

    def parse_number(self, text: str) -> Any:
        digits = text.replace(",", "")
        if digits.isascii() and digits.isdigit():
            return sympy.Integer(int(digits))
        if digits.isascii() and digits.replace(".", "", 1).isdigit():
            return sympy.Float(digits)
        return super().parse_number(text)


@lru_cache(maxsize=1024)
def parsed(expression: str) -> Any:
    """An expression of SymPy. Errors: Refused when it is none."""
    try:
        found = _read(normalize_latex(expression, config=NORMALIZATION))
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        raise Refused(f"not an expression: {' '.join(str(error).split())[:80]!a}") from error
    if found is None:
        raise Refused("not an expression")
    return found


def _read(latex: str) -> Any:
    """As a whole, or else what stands after its last equals sign, as math-verify does."""
    try:
        return _Reader(is_real=not should_treat_as_complex(latex)).parse(latex)
    except Exception:
        last = get_last_eq(latex)
        if last == latex:
            raise
        return _Reader(is_real=not should_treat_as_complex(last)).parse(last)
