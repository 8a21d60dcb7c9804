"""Tokens of one expression, consumed from left to right, and what is noted of them on the way."""

from typing import Final

from slipstream.answers import latex_operators as operators
from slipstream.answers.latex_input import UnsupportedExpression
from slipstream.answers.latex_tokens import END, Token

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
"""Signs and commands that no operand begins with."""
OPERAND_ENDS: Final = frozenset(
    {")", "]", "}", "!", "'", "pi", "infty", "rvert", "rfloor", "rceil", "circ", *operators.GREEK}
    | {f"end {name}" for name in MATRICES}
)


class Reader:
    """A place in a list of tokens. `decimal` and `unfinished` are what the grammar notes of an expression."""

    def __init__(self, tokens: list[Token], *, one_case: bool) -> None:
        self.tokens = tokens
        self.place = 0
        self.one_case = one_case
        self.decimal = False
        self.unfinished: set[str] = set()
        self.bars: list[int] = []
        self.integrals = 0
        self.bound: list[str] = []

    @property
    def next(self) -> Token:
        """The token that is read next; END when there is none."""
        return self.tokens[self.place] if self.place < len(self.tokens) else END

    def take(self, *texts: str) -> str:
        """Consume the next sign or command if it is one of `texts`; empty when it is not."""
        token = self.next
        if token.kind not in ("sign", "command") or token.text not in texts:
            return ""
        self.place += 1
        return token.text

    def need(self, text: str) -> None:
        """Consume one sign or command. Errors: UnsupportedExpression when another token stands there."""
        if not self.take(text):
            raise UnsupportedExpression(f"`{text}` is needed where `{self.next.text or 'the end'}` stands")

    def plain_number(self, start: int) -> bool:
        """Whether all tokens from `start` to here are digits and braces."""
        return all(token.text in "{}" or token.text.isdigit() for token in self.tokens[start : self.place])

    def letter(self, text: str) -> bool:
        """Consume this letter, if it comes next."""
        found = self.next.kind == "letter" and self.next.text == text
        self.place += found
        return found

    def group_of(self, text: str) -> bool:
        """Consume a group of this one token, if it stands there."""
        found = [token.text for token in self.tokens[self.place : self.place + 3]] == ["{", text, "}"]
        self.place += 3 * found
        return found

    def subscript(self) -> str:
        """A subscript as it is written."""
        if not self.take("_"):
            return ""
        if not self.take("{"):
            self.place += 1
            return f"_{self.tokens[self.place - 1].text}" if self.place <= len(self.tokens) else "_"
        start, depth = self.place, 1
        while depth:
            if self.next is END:
                raise UnsupportedExpression("a subscript that does not end")
            depth += (self.next.text == "{") - (self.next.text == "}")
            self.place += 1
        return "_" + "".join(token.text for token in self.tokens[start : self.place - 1])

    def is_differential(self) -> bool:
        """Whether d and a letter come next."""
        after = self.tokens[self.place + 1] if self.place + 1 < len(self.tokens) else END
        return self.next.text == "d" and (after.kind == "letter" or after.text in operators.GREEK)

    def opens_bars(self) -> bool:
        """Whether a bar that comes next opens an absolute value, and does not close one."""
        return not (self.bars and self.after_operand())

    def after_operand(self) -> bool:
        """Whether what was read last is the end of an operand."""
        before = self.tokens[self.place - 1] if self.place else END
        if before.kind in ("number", "letter", "word"):
            return True
        return before.text in OPERAND_ENDS or (before.text in BARS and self.place - 1 not in self.bars)
