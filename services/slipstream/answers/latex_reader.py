"""The state of the parser: a position in the tokens of one expression, and facts collected on the way."""

from typing import Final

from slipstream.answers import latex_input, latex_tokens
from slipstream.answers import latex_operators as operators

TIMES: Final = frozenset({"*", "cdot", "times", "ast"})
OVER: Final = frozenset({"/", ":", "div"})
CLOSING: Final = {
    **{"(": ")", "[": "]", "{": "}", "lbrace": "rbrace", "lfloor": "rfloor", "lceil": "rceil"},
    **{name: name.replace("l", "r", 1) for name in ("lvert", "lVert", "lbrack")},
}
BARS: Final = frozenset({"|", "Vert", "vert", "mid"})
MATRICES: Final = frozenset({"matrix", "pmatrix", "bmatrix", "Bmatrix", "vmatrix", "array", "smallmatrix"})
ENDING: Final = frozenset(
    {*TIMES, *OVER, *operators.RELATIONS, *CLOSING.values(), *BARS, *(f"end {name}" for name in MATRICES)}
    | {"cup", "cap", "setminus", "backslash", "choose", "to", "rightarrow", "pm", "mp", "notin", "subset"}
    | {"subseteq", "lor", "vee", "bmod", "mod"}
)
"""Signs and commands with which no operand begins."""
OPERAND_ENDS: Final = frozenset(
    {")", "]", "}", "!", "'", "pi", "infty", "rvert", "rfloor", "rceil", "circ", *operators.GREEK}
    | {f"end {name}" for name in MATRICES}
)


class Reader:
    """A position in a list of tokens. The grammar records in `decimal` and `unfinished` what it has met."""

    def __init__(self, tokens: list[latex_tokens.Token], *, one_case: bool) -> None:
        self.tokens = tokens
        self.place = 0
        self.one_case = one_case
        self.decimal = False
        self.unfinished: set[str] = set()
        self.bars: list[int] = []
        self.integrals = 0
        self.bound: list[str] = []

    @property
    def next(self) -> latex_tokens.Token:
        """The next token; END after the last one."""
        return self.tokens[self.place] if self.place < len(self.tokens) else latex_tokens.END

    def take(self, *texts: str) -> str:
        """Consume the next sign or command if it is one of `texts`, and return it; else ""."""
        token = self.next
        if token.kind not in ("sign", "command") or token.text not in texts:
            return ""
        self.place += 1
        return token.text

    def need(self, text: str) -> None:
        """Consume this sign or command. Errors: UnsupportedExpression when the next token is another one."""
        if not self.take(text):
            raise latex_input.UnsupportedExpression(
                f"`{text}` is needed where `{self.next.text or 'the end'}` stands"
            )

    def plain_number(self, start: int) -> bool:
        """Return whether all tokens from `start` to the current position are digits and braces."""
        return all(token.text in "{}" or token.text.isdigit() for token in self.tokens[start : self.place])

    def letter(self, text: str) -> bool:
        """Consume this letter if it comes next. Returns whether it did."""
        matches = self.next.kind == "letter" and self.next.text == text
        self.place += matches
        return matches

    def group_of(self, text: str) -> bool:
        """Consume a group of this single token if it comes next. Returns whether it did."""
        matches = [token.text for token in self.tokens[self.place : self.place + 3]] == ["{", text, "}"]
        self.place += 3 * matches
        return matches

    def subscript(self) -> str:
        """Consume a subscript, and return its text; "" without one."""
        if not self.take("_"):
            return ""
        if not self.take("{"):
            self.place += 1
            return f"_{self.tokens[self.place - 1].text}" if self.place <= len(self.tokens) else "_"
        start, depth = self.place, 1
        while depth:
            if self.next is latex_tokens.END:
                raise latex_input.UnsupportedExpression("a subscript that does not end")
            depth += (self.next.text == "{") - (self.next.text == "}")
            self.place += 1
        return "_" + "".join(token.text for token in self.tokens[start : self.place - 1])

    def is_differential(self) -> bool:
        """Return whether a differential (d and a letter) comes next."""
        after = self.tokens[self.place + 1] if self.place + 1 < len(self.tokens) else latex_tokens.END
        return self.next.text == "d" and (after.kind == "letter" or after.text in operators.GREEK)

    def opens_bars(self) -> bool:
        """Return whether a bar at this position opens an absolute value."""
        return not (self.bars and self.after_operand())

    def after_operand(self) -> bool:
        """Return whether the previous token ends an operand."""
        before = self.tokens[self.place - 1] if self.place else latex_tokens.END
        if before.kind in ("number", "letter", "word"):
            return True
        return before.text in OPERAND_ENDS or (before.text in BARS and self.place - 1 not in self.bars)
