"""Normalize the text of a mathematical answer, and reject expressions that could take too long to compute.

An expression that passes can still be slow. So `equality` runs it under a limit of CPU time.
"""

import re
from typing import Final

from slipstream.answers import boxed, notation

MAX_CHARACTERS: Final = 500
MAX_DEPTH: Final = 12
MAX_COMMANDS: Final = 60
MAX_DIGITS: Final = 60
MAX_EXPONENT: Final = 5_000
MAX_POWERS_IN_EXPONENT: Final = 8
MAX_TOWER: Final = 2
"""Limit of powers inside an exponent without letters: 2^{2^{2^2}} is the highest tower."""
MAX_FACTORIAL: Final = 500

_NUMBER = re.compile(r"[0-9]+")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_POWER = re.compile(r"\^|\*\*")
_FACTORIAL = re.compile(r"([0-9]+|[)\]}])\s*!|\\(?:binom|dbinom|tbinom|Gamma|prod|sum|int|uparrow)")
_FACTORIALS = re.compile(r"!\s*!\s*!")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_SPACED_THOUSANDS = re.compile(r"(?<![0-9.])([0-9]{1,3})((?:(?:\\[,;! ]|\{,\}|~)[0-9]{3})+)(?![0-9])")
_SEPARATOR = re.compile(r"\\[,;! ]|\{,\}|~")
_THOUSANDS = re.compile(r"(?<![0-9.,])[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9,])")
_BRACKET = re.compile(r"[(\[]|\\\{")
_MIXED = re.compile(r"(?<![0-9.])([0-9]+)\s+([0-9]+)/([0-9]+)(?![0-9.])")
_SCIENTIFIC = re.compile(r"(?<![A-Za-z0-9.])([0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]+)(?![A-Za-z0-9.])")
_SIGNS = re.compile(r"[\s+-]*")
_ATOM = re.compile(r"\\[A-Za-z]+\s*|[A-Za-z]|[0-9]+(?:\.[0-9]+)?")
_HIGHER = re.compile(r"\s*(?:\^|!)")
_TWO_NUMBERS = re.compile(r"[0-9.](?:\s|\\[,;:! ]|~|\\q?quad|\\space|['\"]|\\?\$)+[0-9.]")
_ENDING = re.compile(r"(?:\s|\\[,;:! ]|\\\\|\\q?quad|(?<!\\)[.,;])$")
LONGEST_ENDING: Final = 6
_WORDS = re.compile(r"\\(?:text|mbox|textrm|textbf|textit)\s*\{([^{}]*)\}")
_RECKONING = re.compile(
    r"\s*(?:(?:squared|cubed|factorial|plus|minus)(?![A-Za-z])|(?:(?:and\s+)?(?:an?|one)\s+)?hal(?:f|ves)\s*$|and\s+an?\s)"
)
_DERIVED = re.compile(r"[)\]}]\s*'")
_BOX = re.compile(r"\\(?:boxed|fbox)")
_SYMBOLIC = re.compile(
    r"\(\s*[0-9]{0,2}[A-Za-z](?:\s*[+-]\s*(?:[0-9]{0,2}[A-Za-z]|[0-9]{1,2})){0,4}\s*\)\s*!"
)


class UnsupportedExpression(ValueError):
    """The expression cannot be parsed, exceeds a limit, or is not fully computed; the message says which."""


def normalize(text: str) -> str:
    """Return the expression without delimiters and with unambiguous numbers.

    Errors: UnsupportedExpression for text that is too long, or could take too long to compute.
    """
    if len(text) > 2 * MAX_CHARACTERS:
        raise UnsupportedExpression(f"{len(text)} characters; at most {MAX_CHARACTERS} are read")
    expression = _plain(_bare(text))
    if not expression:
        raise UnsupportedExpression("empty")
    _check_size(expression)
    _check_powers(expression)
    if _TWO_NUMBERS.search(expression):
        raise UnsupportedExpression("two numbers side by side")
    if _BOX.search(expression):
        raise UnsupportedExpression("a box inside an expression")
    if _DERIVED.search(expression):
        raise UnsupportedExpression("a derivative of an expression in brackets")
    _check_words(expression)
    return expression


def _bare(text: str) -> str:
    """Return the expression without a surrounding box, dollar signs or LaTeX brackets, and without a full
    stop."""
    body = text.strip()
    inside = boxed.last_boxed(body)
    if inside is not None and body in (f"\\boxed{{{inside}}}", f"\\fbox{{{inside}}}"):
        body = inside.strip()
    body = body[2:-2] if len(body) > 4 and body.startswith("**") and body.endswith("**") else body
    for opening, closing in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        if body.startswith(opening) and body.endswith(closing) and len(body) >= 2 * len(opening):
            body = body[len(opening) : len(body) - len(closing)]
            break
    while ending := _ENDING.search(body[-LONGEST_ENDING:]):
        body = body[: len(body) - len(ending[0])]
    return body.strip()


def _plain(body: str) -> str:
    body = without_commas(body)
    body = _SPACED_THOUSANDS.sub(lambda match: match[1] + _SEPARATOR.sub("", match[2]), body)
    body = _MIXED.sub(r"\1\\frac{\2}{\3}", body)
    return notation.one_notation(_SCIENTIFIC.sub(r"\1\\times 10^{\2}", body))


def without_commas(body: str) -> str:
    """Return the text without commas between thousands, if no comma separates items of a list or a point."""
    joined = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), body)
    return body if "," in joined or _BRACKET.search(body) else joined


def _check_size(expression: str) -> None:
    if len(expression) > MAX_CHARACTERS:
        raise UnsupportedExpression(f"{len(expression)} characters; at most {MAX_CHARACTERS} are read")
    if _CONTROL.search(expression):
        raise UnsupportedExpression("an invisible character")
    if len(_COMMAND.findall(expression)) > MAX_COMMANDS:
        raise UnsupportedExpression(f"more than {MAX_COMMANDS} commands of LaTeX")
    if any(len(digits) > MAX_DIGITS for digits in _NUMBER.findall(expression)):
        raise UnsupportedExpression(f"a number of more than {MAX_DIGITS} digits")
    depth = deepest = 0
    for character in expression:
        depth += (character in "{([") - (character in "})]")
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise UnsupportedExpression(f"nested more than {MAX_DEPTH} deep")


def _check_words(expression: str) -> None:
    """Reject words that change the value of a number; units beside a number do not count."""
    words = _WORDS.findall(expression)
    if any(map(_RECKONING.match, words)):
        raise UnsupportedExpression("words that stand for arithmetic, such as `squared`")
    if any(map(_NUMBER.search, words)) and _NUMBER.search(_WORDS.sub("", expression)):
        raise UnsupportedExpression("a number among words beside another number")


def _check_powers(expression: str) -> None:
    """Reject large exponents, large factorials, and towers of powers."""
    for power in _POWER.finditer(expression):
        exponent = _argument(expression[power.end() :])
        largest = max(map(int, _NUMBER.findall(exponent)), default=0)
        if largest > MAX_EXPONENT:
            raise UnsupportedExpression(f"an exponent of more than {MAX_EXPONENT}")
        powers = exponent.count("^")
        if powers > (MAX_POWERS_IN_EXPONENT if re.search("[A-Za-z]", exponent) else MAX_TOWER):
            raise UnsupportedExpression("a tower of powers")
        if ("^" in exponent or "!" in exponent) and largest > 5:
            raise UnsupportedExpression("a power of a power of numbers")
    if _FACTORIALS.search(expression):
        raise UnsupportedExpression("a factorial of a factorial of a factorial")
    for factorial in _FACTORIAL.finditer(_SYMBOLIC.sub("n!", expression)):
        operand = factorial[1]
        if operand is not None and (not operand.isdigit() or int(operand) > MAX_FACTORIAL):
            raise UnsupportedExpression(f"a factorial of anything but a number up to {MAX_FACTORIAL}")
        if operand is None and any(int(number) > 1_000 for number in _NUMBER.findall(expression)):
            raise UnsupportedExpression(f"{factorial[0]} of numbers over 1000")
    if len(_POWER.findall(expression)) > 1 and re.search(r"\)\s*\^|\}\s*\^", expression):
        numbers = [int(number) for number in _NUMBER.findall(expression)]
        if max(numbers, default=0) > 1_000:
            raise UnsupportedExpression("a power of a power of numbers")


def _argument(text: str) -> str:
    """Return the exponent at the start of the text: a group, a command with its groups, a number or a letter,
    with the signs before it, and with its own powers and factorials."""
    end = _SIGNS.match(text).end()  # type: ignore[union-attr]
    end = _after_groups(text, end) if text[end : end + 1] in ("{", "(") else _after_atom(text, end)
    higher = _HIGHER.match(text, end)
    if higher is None:
        return text[:end]
    return text[: higher.end()] + (_argument(text[higher.end() :]) if higher[0].endswith("^") else "")


def _after_atom(text: str, start: int) -> int:
    atom = _ATOM.match(text, start)
    if atom is None:  # a bar or the end: take all up to a space, comma, semicolon or closing bracket
        return start + len(re.split(r"[\s,;)}\]]", text[start:], maxsplit=1)[0])
    return _after_groups(text, atom.end()) if atom[0].startswith("\\") else atom.end()


def _after_groups(text: str, start: int) -> int:
    """Return where the groups that begin at `start` end; the end of the text if one does not close."""
    depth = 0
    for position in range(start, len(text)):
        if not depth and text[position] not in "{([":
            return position
        depth += (text[position] in "{([") - (text[position] in "})]")
    return len(text)
