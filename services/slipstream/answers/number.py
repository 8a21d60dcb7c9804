"""Parse one number: with thousands separators, as a fraction, in percent, in scientific notation."""

import re
from fractions import Fraction
from typing import Final

MAX_CHARACTERS: Final = 200
MAX_EXPONENT: Final = 400

_PLAIN = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
_TIMES = r"\s*(?:\*|×|\\times|\\cdot)\s*"
_POWER = rf"(?:[eE](?P<e>[+-]?[0-9]{{1,4}})|{_TIMES}10(?:\^|\*\*)\{{?(?P<p>[+-]?[0-9]{{1,4}})\}}?)"
_DECIMAL = re.compile(rf"(?P<digits>{_PLAIN}){_POWER}?")
_RATIO = re.compile(r"(?:(?P<whole>[0-9]+)\s+)?(?P<above>[0-9]+)\s*/\s*(?P<below>[0-9]+)")
_LATEX = re.compile(r"(?P<whole>[0-9]+)?\s*\\[dt]?frac\{(?P<above>[0-9]+)\}\{(?P<below>[0-9]+)\}")
_CURRENCY = re.compile(r"\A(?:\\(?=\$))?[$€£¥]*")
_PERCENT = re.compile(r"(?:\s|\\[,;:! ]|~)*(?:\\?%|\\(?:text|mathrm)\{\s*(?:\\?%|percent)\s*\}|percent)\Z")
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))


class NotANumber(ValueError):
    """The text is not one number; the message says why."""


def read_number(text: str) -> tuple[Fraction, bool]:
    """Return the exact value of a number, and whether it is in percent (50% is 1/2).

    The number may have a sign, a currency sign, thousands separators (1,234), an exponent (1e5, 1.2 ×
    10^{5}), or be a fraction (3/4, 1 3/4, \\frac{3}{4}). Digits are ASCII. Errors: NotANumber.
    """
    if len(text) > MAX_CHARACTERS:
        raise NotANumber(f"{len(text)} characters; a number has at most {MAX_CHARACTERS}")
    body = _bare(text).strip("$").removesuffix("\\").replace("−", "-").replace("{,}", ",").strip()
    percent = _PERCENT.search(body)
    body = body[: percent.start()] if percent else body
    sign = -1 if body.startswith("-") else 1
    body = body[1:].strip() if body[:1] in ("-", "+") else body
    value = _unsigned(_CURRENCY.sub("", body))
    return (sign * value / 100 if percent else sign * value), percent is not None


def _bare(text: str) -> str:
    """Return the text without surrounding dollar signs or LaTeX brackets, and without a final full stop."""
    body = text.strip()
    body = body[:-1].rstrip() if body.endswith(".") and not body.endswith("..") else body
    for opening, closing in _DELIMITERS:
        if len(body) >= len(opening + closing) and body.startswith(opening) and body.endswith(closing):
            return body[len(opening) : -len(closing)].strip()
    return body


def _unsigned(body: str) -> Fraction:
    ratio = _RATIO.fullmatch(body) or _LATEX.fullmatch(body)
    if ratio:
        below = int(ratio["below"])
        if not below:
            raise NotANumber("a division by zero")
        return int(ratio["whole"] or 0) + Fraction(int(ratio["above"]), below)
    decimal = _DECIMAL.fullmatch(body)
    if not decimal:
        raise NotANumber(f"{body[:40]!a} is not one number")
    exponent = int(decimal["e"] or decimal["p"] or 0)
    if abs(exponent) > MAX_EXPONENT:
        raise NotANumber(f"an exponent of {exponent}; at most {MAX_EXPONENT} is read")
    return Fraction(decimal["digits"].replace(",", "")) * Fraction(10) ** exponent
