"""From LaTeX to an expression of SymPy, by the parser of math-verify with numbers that are read faster.

SymPy makes a number of a text by importing all of its names and evaluating it, which is two thirds of the
time of a parse. See latex2sympy2_extended 1.11, https://github.com/huggingface/latex2sympy2_extended.
"""

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy, normalize_latex
from latex2sympy2_extended.math_normalization import units_regex
from math_verify import LatexExtractionConfig
from math_verify.grader import should_treat_as_complex

from slipstream.tasks.mathematics import Refused

NORMALIZATION: Final = replace(LatexExtractionConfig().normalization_config, units=False, boxed="none")
"""Units are taken off here: the normalisation drops all between the first words and a brace at the end."""
TWO_CASES: Final = ConversionConfig(lowercase_symbols=False)
ONE_CASE: Final = ConversionConfig()
FLOAT_DIGITS: Final = 60
"""So that 6.02 times 10^23 is the whole number that it is."""

_PART = re.compile(r"\\[dt]?frac(?:\{[0-9]+\}|[0-9])(?:\{[0-9]+\}|[0-9])")
_BARE_NUMBER = re.compile(r"[{\s]*[0-9.,]+[}\s]*")
_EQUALS = re.compile(r"(?<![\\<>!])=")
_UNIT = re.compile(
    r"([0-9A-Za-z})\]!%|])\s*(?:\\[,;: ])?\\(?:text|mbox|mathrm|textrm|textbf|textit)\s*"
    r"\{(?!\s*(?:and|or)\s*\})[^{}]*\}"
    r"\s*(?:\^\s*(?:[0-9]|\{[0-9]\}))?(?=\s*(?:$|[,;]))"
)
_NO_SYMBOL = re.compile(r"\\(?:text|mbox|mathrm|textbf|textit|textrm)\s*\{[^{}]*\}|\\[A-Za-z]+")
_OR = re.compile(r"\s*\\(?:text|mbox|mathrm)\s*\{\s*or\s*\}\s*|\s+or\s+|\\lor(?![A-Za-z])|\\vee(?![A-Za-z])")
_FRACTION_OF_HUNDRED = re.compile(r"([0-9]+)?\\[dt]?frac\{([0-9]+)\}\{([0-9]+)\}\s*\\?%")


class _Reader(_Latex2Sympy):  # type: ignore[misc]
    """The parser, whose whole numbers and decimals need no evaluation.

    Of two numbers side by side it makes a sum, also of 2(3) and of 2{3}; here only 2\\frac{1}{3} is one.
    """

    def parse_number(self, text: str) -> Any:
        digits = text.replace(",", "")
        if digits.isascii() and digits.isdigit():
            return sympy.Integer(int(digits))
        if digits.isascii() and digits.replace(".", "", 1).isdigit():
            return sympy.Float(digits, FLOAT_DIGITS)
        return super().parse_number(text)

    def convert_postfix_list(self, arr: Any, i: int = 0) -> Any:
        left, after = self.convert_postfix(arr[i]), i + 1
        if after < len(arr) and _is_mixed(arr[i].getText(), arr[after].getText()):
            left, after = left + self.convert_postfix(arr[after]), after + 1
        if after == len(arr):
            return left
        if isinstance(left, list):
            return super().convert_postfix_list(arr, i)
        if not isinstance(left, sympy.Expr | sympy.MatrixBase):
            raise ValueError("something after a set, a point or a relation")
        if _BARE_NUMBER.fullmatch(arr[after - 1].getText()) and _BARE_NUMBER.fullmatch(arr[after].getText()):
            raise ValueError("two numbers side by side")
        return self._product(left, self.convert_postfix_list(arr, after))

    def convert_postfix(self, postfix: Any) -> Any:
        """Of what is no matrix it leaves a transpose out: here 2^T is a power, and (x)' is not x."""
        value = super().convert_postfix(postfix)
        marks = [mark.getText() for mark in postfix.postfix_op() if mark.transpose()]
        if not marks or not isinstance(value, sympy.Expr) or isinstance(value, sympy.MatrixBase):
            return value
        if any("T" in mark for mark in marks):
            return sympy.Pow(value, self.create_symbol("T"), evaluate=False)
        return value if value.is_Number else sympy.Function("prime")(value)

    def convert_func(self, func: Any) -> Any:
        """A logarithm with a base as a quotient: SymPy forgets the base of one that is not evaluated."""
        value = super().convert_func(func)
        if isinstance(value, sympy.Pow) and isinstance(value.base, sympy.log):
            return sympy.Pow(_quotient(value.base), value.exp, evaluate=False)
        return _quotient(value) if isinstance(value, sympy.log) else value

    def _product(self, left: Any, right: Any) -> Any:
        if isinstance(left, sympy.MatrixBase) or isinstance(right, sympy.MatrixBase):
            return self.mat_mul_flat(left, right)
        if isinstance(left, sympy.Rational) and isinstance(right, sympy.Rational):
            return left * right
        return self.mul_flat(left, right)


def _quotient(logarithm: Any) -> Any:
    of, base = (*logarithm.args, sympy.E)[:2]
    if base == sympy.E:
        return logarithm
    if of.is_Integer and base.is_Integer:
        return sympy.log(of, base)
    return sympy.Mul(sympy.log(of, evaluate=False), sympy.Pow(sympy.log(base), -1), evaluate=False)


def _is_mixed(whole: str, part: str) -> bool:
    return whole.isdigit() and _PART.fullmatch(part) is not None


@lru_cache(maxsize=1024)
def parsed(expression: str) -> Any:
    """An expression of SymPy. Errors: Refused when it is none."""
    try:
        found = _alternatives(_FRACTION_OF_HUNDRED.sub(_fraction, expression))
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        raise Refused(f"not an expression: {expression[:80]!a}") from error
    if found is None:
        raise Refused("not an expression")
    if isinstance(found, sympy.Basic) and found.has(sympy.zoo, sympy.nan):
        raise Refused("a division by zero")
    return found


def _fraction(found: re.Match[str]) -> str:
    """33 1/3 % as a fraction; the parser knows percent after whole numbers and decimals only."""
    whole, above, below = int(found[1] or 0), int(found[2]), int(found[3])
    return rf"\frac{{{whole * below + above}}}{{{100 * below}}}"


def _alternatives(latex: str) -> Any:
    """Inequalities of one letter with `or` between them are the union of what they allow."""
    parts = [_read(_normal(part)) for part in _OR.split(latex)]
    if len(parts) > 1 and all(
        isinstance(part, sympy.core.relational._Inequality | sympy.And) and len(part.free_symbols) == 1
        for part in parts
    ):
        return sympy.Union(*(part.as_set() for part in parts))
    return parts[0] if len(parts) == 1 else _read(_normal(latex))


def _normal(latex: str) -> str:
    """In the one form that the parser knows, without units of numbers."""
    for _ in range(2):
        latex = units_regex.sub(r"\1", _UNIT.sub(r"\1", latex))
    return str(normalize_latex(latex, config=NORMALIZATION))


def _read(latex: str) -> Any:
    """As a whole, or else what stands after its last equals sign, as math-verify does."""
    try:
        return _reader(latex).parse(latex)
    except Exception:
        last = latex if "," in latex or ";" in latex else _EQUALS.split(latex)[-1]
        if last == latex:
            raise
        return _reader(last).parse(last)


def _reader(latex: str) -> _Reader:
    """Upper and lower case are the same, as in the letter of a choice, unless both stand for two things."""
    letters = set(filter(str.isalpha, _NO_SYMBOL.sub("", latex)))
    both = any(letter.isupper() and letter.lower() in letters for letter in letters)
    return _Reader(is_real=not should_treat_as_complex(latex), config=TWO_CASES if both else ONE_CASE)
