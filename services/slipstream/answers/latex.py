"""Parse a LaTeX answer: an expression, a list, a point, an interval, a set or a relation.

The grammar is small; `latex_grammar` has the part for expressions. Text outside of the grammar is an error.
"""

import re
from functools import lru_cache
from itertools import product
from typing import Final

import sympy

from slipstream.answers import latex_commands
from slipstream.answers import latex_operators as operators
from slipstream.answers.latex_input import UnsupportedExpression, without_commas
from slipstream.answers.latex_tokens import END, Token, tokens_of
from slipstream.answers.latex_values import Braces, Bracketed, Chain, Leaf, Listing, Region, Value, unfinished
from slipstream.answers.regions import region

MOST_ITEMS: Final = 32
MOST_SIGNS: Final = 3
"""Limit of \\pm and \\mp in one expression; each doubles the number of values."""
AND: Final = frozenset({"and", "or"})
OPENING: Final = frozenset({"(", "[", "{", "lbrace"})

_CURRENCY = re.compile(r"(?:\\?\$|[€£¥])\s*(?=\.?[0-9])")
_AND = re.compile(r"(\\[a-z]+\s*\{[^{}]*\})|(?<![A-Za-z{])\s*\b(and|or)\b\s*(?![A-Za-z}])")
_BETWEEN = re.compile(r"(\\text\{\s*(?:and|or)\s*\})")
_TIME = re.compile(r"[0-9]{1,2}:[0-9]{2}\s*(?:\\text\{.*\})?")
_BASED = re.compile(r"\(([0-9][0-9A-Z]*)\)\s*_")
_CHOICES = re.compile(r"\\text(?:bf|it|rm)?\{\s*([A-Z](?:\s*,\s*[A-Z])+)\s*\}")


@lru_cache(maxsize=1024)
def parse_answer(expression: str) -> Value:
    """Parse a normalized expression. Errors: UnsupportedExpression when it has no comparable meaning."""
    if _TIME.fullmatch(expression):
        return Leaf(value=sympy.Symbol(expression))
    try:
        tokens = tokens_of(_plain(expression))
        try:
            return _values(tokens)
        except UnsupportedExpression:
            last = _last_side(tokens)
            if last is None:
                raise
            return _values(last)
    except (MemoryError, RecursionError):
        raise
    except UnsupportedExpression as error:
        raise UnsupportedExpression(f"not an expression: {error}") from error
    except Exception as error:
        raise UnsupportedExpression(f"not an expression: {expression[:80]!a}") from error


def _plain(expression: str) -> str:
    parts = _AND.sub(lambda match: match[1] or rf"\text{{{match[2]}}}", _BASED.sub(r"\1_", expression))
    parts = "".join(map(without_commas, _BETWEEN.split(parts)))
    return _CURRENCY.sub("", _CHOICES.sub(r"\1", parts))


def _last_side(tokens: list[Token]) -> list[Token] | None:
    """Return the tokens after the last equals sign; None without one, and in a list."""
    if any(token.text in (",", ";") for token in tokens):
        return None
    places = [place for place, token in enumerate(tokens) if token.text == "="]
    return tokens[places[-1] + 1 :] if places else None


def _values(tokens: list[Token]) -> Value:
    items = _items(tokens)
    if len(items) == 1:
        return items[0]
    return _union(items) if _is_either(tokens) else Listing(tuple(items))


def _is_either(tokens: list[Token]) -> bool:
    """Return whether all separators are `or`."""
    return not any(token.text in (",", ";", "and") for token in tokens)


def _union(items: list[Value]) -> Value:
    """Return the union of the solutions of inequalities that are joined by `or`; else a list."""
    regions = [region(item) if isinstance(item, Chain) else None for item in items]
    sets = [part.value for part in regions if part is not None]
    if len(sets) < len(items):
        return Listing(tuple(items))
    decimal = any(part.decimal for part in regions if part is not None)
    return Region(sympy.Union(*sets), decimal, unfinished(Listing(tuple(items))))


def _items(tokens: list[Token]) -> list[Value]:
    """Parse the values that are separated by commas, semicolons, `and` or `or`."""
    one_case = _one_case(tokens)
    items = [
        _Values(chosen, one_case=one_case).whole() for part in _split(tokens) for chosen in _both_signs(part)
    ]
    if len(items) > MOST_ITEMS:
        raise UnsupportedExpression(f"a list of more than {MOST_ITEMS}")
    return items


def _split(tokens: list[Token]) -> list[list[Token]]:
    parts: list[list[Token]] = [[]]
    depth = 0
    separated = False
    for token in tokens:
        word = token.kind == "word" and token.text.lower() in AND
        if not depth and (word or token.text in (",", ";") or token.text in ("lor", "vee")):
            if parts[-1]:
                parts.append([])
            elif not word and not separated:
                raise UnsupportedExpression("a list with an empty item")
            separated = True
            continue
        depth += _depth(token)
        parts[-1].append(token)
    if not parts[-1]:
        raise UnsupportedExpression("a list that ends with a separator" if len(parts) > 1 else "empty")
    return parts


def _depth(token: Token) -> int:
    if token.kind not in ("sign", "command"):
        return 0
    opens = token.text in OPENING or token.text.startswith("begin ")
    closes = token.text in (")", "]", "}", "rbrace") or token.text.startswith("end ")
    return opens - closes


def _both_signs(tokens: list[Token]) -> list[list[Token]]:
    """Return the tokens for each choice of signs. If \\mp occurs, all signs change together."""
    places = [
        place for place, token in enumerate(tokens) if token.text in ("pm", "mp") and token.kind == "command"
    ]
    if not places or _is_braces(tokens):
        return [tokens]
    if len(places) > MOST_SIGNS:
        raise UnsupportedExpression(f"more than {MOST_SIGNS} signs for both plus and minus")
    together = any(tokens[place].text == "mp" for place in places)
    choices = [("+",) * len(places), ("-",) * len(places)] if together else product("+-", repeat=len(places))
    return [_with_signs(tokens, places, choice) for choice in choices]


def _with_signs(tokens: list[Token], places: list[int], choice: tuple[str, ...]) -> list[Token]:
    chosen = list(tokens)
    for place, sign in zip(places, choice, strict=True):
        opposite = tokens[place].text == "mp"
        chosen[place] = Token("sign", sign if not opposite else "-" if sign == "+" else "+")
    return chosen


def _is_braces(tokens: list[Token]) -> bool:
    return (
        tokens[0].text == "lbrace"
        and tokens[-1].text == "rbrace"
        and len(_split_at_end(tokens)) == len(tokens)
    )


def _split_at_end(tokens: list[Token]) -> list[Token]:
    """Return the tokens up to the end of the first bracket."""
    depth = 0
    for place, token in enumerate(tokens):
        depth += _depth(token)
        if not depth:
            return tokens[: place + 1]
    return tokens


def _one_case(tokens: list[Token]) -> bool:
    """Upper and lower case are the same, as in the letter of a choice, unless both stand for two things."""
    letters = {token.text for token in tokens if token.kind == "letter"}
    return not any(letter.isupper() and letter.lower() in letters for letter in letters)


class _Values(latex_commands.Commands):
    """The grammar of relations and sets around that of expressions."""

    def whole(self) -> Value:
        """All tokens as one value. Errors: UnsupportedExpression when some are left over."""
        value = self._chain()
        if self.next is not END:
            raise UnsupportedExpression(f"`{self.next.text}` is left over")
        return value

    def _chain(self) -> Value:
        sides, signs = [self._side()], []
        while sign := operators.RELATIONS.get(self.next.text, ""):
            self.place += 1
            signs.append(sign)
            sides.append(self._side())
        if not signs:
            return sides[0]
        if signs[-1] == "in" and len(signs) == 1:
            return sides[1]
        if "in" in signs:
            raise UnsupportedExpression("a relation of elements and of numbers")
        return Chain(tuple(sides), tuple(signs))

    def _side(self) -> Value:
        value = self._set()
        while operation := self.take("cup", "cap", "setminus", "backslash"):
            first, second = region(value), region(self._set())
            if first is None or second is None:
                raise UnsupportedExpression("an operation of sets on what is none")
            decimal = first.decimal or second.decimal
            one, other = first.value, second.value
            combined = (
                one | other if operation == "cup" else one & other if operation == "cap" else one - other
            )
            value = Region(combined, decimal, first.unfinished | second.unfinished)
        return value

    def _set(self) -> Value:
        if self.take("emptyset"):
            return Braces(())
        if self.take("mathbb"):
            return self._named_set()
        opening = self.next.text if self.next.kind in ("sign", "command") else ""
        if opening == "lbrace":
            return self._braces()
        if opening in ("(", "[") and self._has_comma():
            return self._bracketed(opening)
        return self._leaf()

    def _named_set(self) -> Value:
        braces = bool(self.take("{"))
        name = self.next.text
        self.place += 1
        if braces:
            self.need("}")
        if name not in operators.SETS:
            raise UnsupportedExpression(f"\\mathbb{{{name}}} is no set of numbers")
        numbers = operators.SETS[name]
        if self.take("^", "_"):
            numbers &= self._half()
        return Region(numbers)

    def _half(self) -> sympy.Set:
        """Return the positive or the negative numbers."""
        braces = self.take("{")
        positive = self.take("+", "-") == "+"
        if self.take("*") or (braces and not self.take("}")):
            raise UnsupportedExpression("a set of numbers with an unknown mark")
        return sympy.Interval.open(0, sympy.oo) if positive else sympy.Interval.open(-sympy.oo, 0)

    def _braces(self) -> Value:
        inside = _split_at_end(self.tokens[self.place :])
        self.place += len(inside)
        self.units()
        if len(inside) < 2 or inside[-1].text != "rbrace":
            raise UnsupportedExpression("a set that does not end")
        return Braces(tuple(_items(inside[1:-1]) if inside[1:-1] else ()))

    def _has_comma(self) -> bool:
        depth = 0
        for token in self.tokens[self.place :]:
            depth += _depth(token)
            if not depth:
                return False
            if depth == 1 and token.kind == "sign" and token.text in ",;":
                return True
        return False

    def _bracketed(self, opening: str) -> Value:
        self.place += 1
        items = [self._chain()]
        while self.take(",", ";"):
            items.append(self._chain())
        closing = self.take(")", "]")
        if not closing or len(items) > MOST_ITEMS:
            raise UnsupportedExpression(f"brackets that do not close, or hold more than {MOST_ITEMS} items")
        self.units()
        return Bracketed(opening, tuple(items), closing)

    def _leaf(self) -> Leaf:
        decimal, unfinished = self.decimal, self.unfinished
        self.decimal, self.unfinished = False, set()
        value = self.sum()
        percent = bool(self.take("%"))
        self.units()
        if _undefined(value):
            raise UnsupportedExpression("a division by zero")
        leaf = Leaf(value=value, decimal=self.decimal, percent=percent, unfinished=frozenset(self.unfinished))
        self.decimal, self.unfinished = decimal, unfinished
        return leaf


def _undefined(value: object) -> bool:
    return isinstance(value, sympy.Basic) and value.has(sympy.zoo, sympy.nan)
