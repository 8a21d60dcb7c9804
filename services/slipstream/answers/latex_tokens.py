"""Split LaTeX mathematics into tokens: numbers, letters, words, commands and signs, without layout."""

import re
from dataclasses import dataclass
from typing import Final, Literal

from slipstream.answers.latex_input import UnsupportedExpression

Kind = Literal["number", "letter", "word", "command", "sign", "end"]
WORD_COMMANDS: Final = ("text", "mbox", "textrm", "textbf", "textit", "mathrm", "textnormal")
LAYOUT_COMMANDS: Final = (
    *("mathbf", "mathit", "mathsf", "mathcal", "boldsymbol"),
    *("displaystyle", "textstyle", "limits", "nolimits", "middle", "left", "right", "quad", "qquad"),
)
NAMED_IN_WORDS: Final = frozenset({"gcd", "lcm", "max", "min"})
FRACTIONS: Final = frozenset({"frac", "dfrac", "tfrac", "cfrac"})

_TOKEN = re.compile(
    r"(?P<space>(?:\s|~|\\[,;:! ]|\\\\\s*$"
    rf"|\\(?:[bB]igg?[lrm]?|{'|'.join(LAYOUT_COMMANDS)})(?![A-Za-z])\.?)+)"
    rf"|\\(?P<font>{'|'.join(WORD_COMMANDS)})\s*\{{(?P<word>[^{{}}]*)\}}"
    r"|\\(?P<environment>begin|end)\s*\{(?P<name>[A-Za-z]+)\*?\}(?:\s*\{[lcr|\s]*\})?"
    r"|\\operatorname\*?\s*\{\s*(?P<operator>[A-Za-z]+)\s*\}"
    r"|\\(?P<command>[A-Za-z]+)"
    r"|(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"|(?P<letter>[A-Za-z])"
    r"|(?P<row>\\\\)|\\(?P<escaped>[{}%|])|(?P<sign>[-+*/:^_!'(){}\[\]|,;=<>&%])"
)
_NUMERIC = re.compile(r"\s*[-+]?[0-9]+(?:\.[0-9]+)?\s*")
_WORD_IN_FULL: Final = {"infinity": r"\infty"}


@dataclass(frozen=True, slots=True)
class Token:
    """A token; `spaced` is true if layout precedes it."""

    kind: Kind
    text: str
    spaced: bool = False


END: Final = Token("end", "")


def tokens_of(latex: str) -> list[Token]:
    """Return the tokens from left to right. Errors: UnsupportedExpression naming an unknown character."""
    for word, command in _WORD_IN_FULL.items():
        latex = latex.replace(word, command) if f"\\{word}" not in latex else latex
    tokens: list[Token] = []
    position, spaced = 0, False
    while position < len(latex):
        match = _TOKEN.match(latex, position)
        if match is None:
            raise UnsupportedExpression(f"unknown character {latex[position]!a}")
        position = match.end()
        if match["space"] is not None:
            spaced = True
            continue
        new_tokens = _tokens(match, spaced)
        if tokens and tokens[-1].text in FRACTIONS and tokens[-1].kind == "command":
            new_tokens = _first_digit(new_tokens)
        tokens += new_tokens
        spaced = False
    return tokens


def _first_digit(tokens: list[Token]) -> list[Token]:
    """Split the first digit off a number: without braces, \\frac12 is 1/2."""
    number = tokens[0] if tokens else END
    if number.kind != "number" or len(number.text) == 1:
        return tokens
    return [Token("number", number.text[0]), Token("number", number.text[1:])]


def _tokens(match: re.Match[str], spaced: bool) -> list[Token]:
    if match["font"]:
        return _word(match["font"], match["word"], spaced)
    if match["environment"]:
        return [Token("command", f"{match['environment']} {match['name']}", spaced)]
    if match["operator"] or match["command"]:
        return [Token("command", match["operator"] or match["command"], spaced)]
    if match["number"] or match["letter"]:
        return [Token("number" if match["number"] else "letter", match[0], spaced)]
    if match["escaped"]:
        name = {"{": "lbrace", "}": "rbrace", "|": "Vert"}.get(match["escaped"])
        return [Token("command", name, spaced) if name else Token("sign", "%", spaced)]
    return [Token("sign", match["row"] or match["sign"], spaced)]


def _word(font: str, word: str, spaced: bool) -> list[Token]:
    """Return the tokens of a text command: numbers and the letters e, i, d keep their meaning; "" is
    layout."""
    bare = word.strip()
    if not bare:
        return []
    if _NUMERIC.fullmatch(word):
        return [Token("sign", "{", spaced), *tokens_of(bare), Token("sign", "}")]
    if bare in NAMED_IN_WORDS:
        return [Token("command", bare, spaced)]
    if font == "mathrm" and bare in ("e", "i", "d"):
        return [Token("letter", bare, spaced)]
    return [Token("word", bare, spaced)]
