"""Rewrite the many notations of mathematics to the one LaTeX notation that the parser reads.

The meaning of an expression does not change. Rewritten are: Unicode signs, recurring decimals, degrees in a
sine, words after a number, and the range of an integer variable.
"""

import re
import unicodedata
from fractions import Fraction
from typing import Final

SIGNS: Final = str.maketrans(
    {
        **dict.fromkeys("−–‐‑", "-"), "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ",
        "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "∪": r"\cup ", "√": r"\sqrt ",
        "∅": r"\emptyset ", "±": r"\pm ", "°": r"^\circ ", "⁄": "/",
    }
)  # fmt: skip
COMMANDS: Final = {
    "varnothing": r"\emptyset ", "degree": r"^\circ ", "equiv": "=", "boldsymbol": r"\mathbf",
    "bm": r"\mathbf", "cfrac": r"\frac", "langle": "(", "rangle": ")",
}  # fmt: skip
FUNCTIONS: Final = r"\\(?:sin|cos|tan|cot|sec|csc)(?:\^(?:\{[0-9]\}|[0-9]))?"
MOST_ROOTS: Final = 3
"""Limit of nested roots in round brackets."""
PLAIN: Final = re.compile(r"[-+0-9.,/ ]*")
"""Plain numbers, which need no rewriting."""

_COMMAND = re.compile(rf"\\({'|'.join(COMMANDS)})(?![A-Za-z])")
_POWERS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ]+")
_VULGAR = re.compile("[¼-¾⅐-⅞]")
_RECURRING = re.compile(
    r"(?<![0-9.,])([0-9]{0,20})\.([0-9]{0,20})\\(?:overline|bar)\s*(?:\{([0-9]{1,20})\}|([0-9]))"
)
_ROOT_OF_NUMBER = re.compile(r"√\s*([0-9]+(?:\.[0-9]+)?)")
_PRIME = re.compile(r"(?<![A-Za-z\\])([A-Za-z])('+)(?![A-Za-z'])")
_SCALE: Final = {"dozen": "12", "hundred": "10^{2}"} | {
    f"{name}illion": f"10^{{{zeros}}}" for name, zeros in (("m", 6), ("b", 9), ("tr", 12))
}
_SCALE["thousand"] = "10^{3}"
_SCALED = re.compile(
    rf"([0-9])\s*\\(?:text|mbox|mathrm|textrm)\s*\{{\s*({'|'.join(_SCALE)}|percent)(?![A-Za-z])\s*([^{{}}]*)\}}"
)
_PI = re.compile(r"(?<![\\A-Za-z{])pi(?![A-Za-z])")
_LOG = re.compile(r"\\log\s*_\s*([0-9A-Za-z])")
_HALF = re.compile(r"\\[dt]?frac\s*([0-9])\s+([0-9])(?![0-9])")
_DEGREES = re.compile(
    rf"({FUNCTIONS}\s*(?:\\left)?[({{]?\s*)([0-9.]+)\s*\^\s*(?:\{{\\circ\s*\}}|\\circ)(?![A-Za-z])"
)
_RAISED = re.compile(r"(?<=[0-9}])\^([0-9])\s+(?=[0-9])")
_POWER_OF_FUNCTION = re.compile(r"(\\(?:sin|cos|tan|cot|sec|csc|ln|log))\s*\^\s*([0-9])\s+(?=[0-9])")
_VECTOR = re.compile(r"\\(?:mathbf|vec|hat|mathit)\s*\{\s*\\?([A-Za-z]|[ij]math)\s*\}")
_CROSSED = re.compile(
    r"\\(?:mathbf|vec)\s*\{\s*\\?([A-Za-z])\s*\}\s*\\times\s*\\(?:mathbf|vec)\s*\{\s*\\?([A-Za-z])\s*\}"
)
_UNIT = r"(?:mm|cm|dm|km|m|ft|in|yd|mi|kg|mg|lb|oz|ms|hr|ml|mL)(?:\^(?:[23]|\{[23]\}))?"
_UPRIGHT = re.compile(r"\\(?:mathrm|text|operatorname)\s*\{\s*([eij])\s*\}")
_DOTS = re.compile(r",\s*\\[lc]?dots\s*,")
_SUCH_THAT = re.compile(
    r"(?:\\left)?\\\{\s*[A-Za-z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?:\||:|\\mid(?![A-Za-z]))((?:(?!\\right\\).)*)(?:\\right)?\\\}",
    re.DOTALL,
)
_UNDERLINED = re.compile(r"\\underline\s*\{([^{}]*)\}")
_MODULO = re.compile(r"\s*\\pmod\s*(?:\{[^{}]*\}|[0-9A-Za-z])\s*$")
_INTEGERS = re.compile(r"(?:\\[,;: ]|\\q?quad|\s)*[,(]\s*[A-Za-z]\s*\\in\s*\\mathbb\s*(?:\{Z\}|Z)\s*\)?\s*$")
_ROOT = re.compile(r"\\sqrt\s*\(([^()]*)\)")
_COUNTED = re.compile(
    r"([-+]?\\?\$?[0-9][0-9.,/]*)\s+(?!(?:sin|cos|tan|log|sqrt|inf)\b)"
    rf"((?:[A-Za-z]{{3,}}\s+)*[A-Za-z]{{3,}}|{_UNIT}(?:/(?:{_UNIT}|s|h|min|L))?)"
)
_NUMBER = re.compile(r"[0-9^{}]")
_IN_WORDS = re.compile(r"\\(?:text|textbf|textrm|mathrm|mbox)\s*\{([^{}]*)\}")
_ORDINAL = re.compile(r"([0-9]+)\s*\^\s*\{\s*\\(?:text|mathrm|textrm)\s*\{\s*(st|nd|rd|th)\s*\}\s*\}")


def one_notation(text: str) -> str:
    """Return a text of mathematics in the notation that the parser reads. Errors: none."""
    if PLAIN.fullmatch(text):
        return text
    text = _ROOT_OF_NUMBER.sub(r"\\sqrt{\1}", _VULGAR.sub(_vulgar, _POWERS.sub(_power, text)))
    text = _PRIME.sub(_primed, text.replace("**", "^").translate(SIGNS))
    text = _COMMAND.sub(lambda match: COMMANDS[match[1]], text)
    text = _RECURRING.sub(_recurring, _PI.sub(r"\\pi ", text))
    text = _HALF.sub(r"\\frac{\1}{\2}", _LOG.sub(r"\\log_{\1} ", text))
    text = _CROSSED.sub(r" \1_{cross\2} ", text)  # the parser ignores the order of factors
    text = _VECTOR.sub(
        lambda match: f" {match[1][0]} ",
        _RAISED.sub(r"^{\1}\\cdot ", _POWER_OF_FUNCTION.sub(r"\1^{\2} ", text)),
    )
    text = _DEGREES.sub(r"\1(\\frac{\2\\pi}{180})", text)
    text = _INTEGERS.sub("", text)
    text = _MODULO.sub("", _roots(_UNDERLINED.sub(r"{\1}", text))).removeprefix(r"\approx ")
    text = _DOTS.sub(r",\\text{dots},", _UPRIGHT.sub(r" \1 ", text))
    condition = _SUCH_THAT.fullmatch(text)
    text = condition[1].strip() if condition else text
    text = _ORDINAL.sub(r"\1\\text{\2}", text)
    quoted = _IN_WORDS.fullmatch(text)
    counted = _COUNTED.fullmatch(quoted[1].strip() if quoted else text)
    text = rf"{counted[1]}\text{{ {_NUMBER.sub('', counted[2])}}}" if counted else text
    return _SCALED.sub(_scaled, text)


def _vulgar(match: re.Match[str]) -> str:
    above, _, below = unicodedata.normalize("NFKC", match[0]).partition("⁄")
    return rf"\frac{{{above}}}{{{below}}}"


def _power(match: re.Match[str]) -> str:
    return f"^{{{unicodedata.normalize('NFKC', match[0]).replace('−', '-')}}}"


def _recurring(match: re.Match[str]) -> str:
    """Return a recurring decimal as a fraction: 0.1(6) is (16 - 1) / 90."""
    before, again = match[1] + match[2], match[3] or match[4]
    value = Fraction(int(before + again) - int(before or "0"), 10 ** len(match[2]) * (10 ** len(again) - 1))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _roots(text: str) -> str:
    """Rewrite roots of round brackets, the innermost first."""
    for _ in range(MOST_ROOTS):
        text = _ROOT.sub(r"\\sqrt{\1}", text)
    return text


def _primed(match: re.Match[str]) -> str:
    """Return a letter with primes as another letter, by a subscript; the parser ignores primes."""
    return rf"{match[1]}_{{{'prime' * len(match[2])}}}"


def _scaled(match: re.Match[str]) -> str:
    """Return a number with a scale word as a product: 5 million dollars are 5000000 dollars."""
    factor = r"\%" if match[2] == "percent" else rf"\times {_SCALE[match[2]]}"
    return rf"{match[1]}{factor}" + (rf"\text{{ {match[3]}}}" if match[3] else "")
