"""The text of tokens that arrive one by one."""

from collections.abc import Callable, Sequence

WINDOW = 16
"""Tokens that are decoded together before the window moves on."""
LONGEST_WINDOW = 64
"""The window moves on after so many tokens, even in the middle of a character."""
KEPT = 4
"""Tokens that stay in the window: how a token is spelled may depend on those before it."""
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
UNKNOWN_CHARACTERS = 3
"""Most replacement characters at the end of a text that may be the beginning of one character."""

Decode = Callable[[Sequence[int]], str]


class TokenText:
    """Decodes a growing list of tokens.

    Invariant: `settled` only grows, and depends on the tokens alone, not on the chunks in which they came.
    """

    def __init__(self, decode: Decode) -> None:
        self.settled = ""
        """The text so far, without the beginning of a character whose other bytes are still to come."""
        self._decode = decode
        self._window: list[int] = []
        self._text = ""
        """Text of the window."""
        self._taken = 0
        """Number of characters of the window's text that are in `settled`."""

    def add(self, token_id: int) -> None:
        """Append a token."""
        self._window.append(token_id)
        self._text = self._decode(self._window)
        end = len(self._text) - _unknown_at_the_end(self._text)
        if end > self._taken:
            self.settled += self._text[self._taken : end]
            self._taken = end
        size = len(self._window)
        if size > LONGEST_WINDOW or (size > WINDOW and end == len(self._text)):
            self._move(waiting=len(self._text) - self._taken)

    def whole(self) -> str:
        """Return the text, with replacement characters for bytes at its end that are no character."""
        return self.settled + self._text[self._taken :]

    def _move(self, *, waiting: int) -> None:
        """Forget the first tokens of the window. `waiting`: characters at its end that are not settled."""
        self._window = self._window[-KEPT:]
        self._text = self._decode(self._window)
        self._taken = max(len(self._text) - waiting, 0)


def begun_at_the_end(text: str, marks: Sequence[str]) -> int:
    """Return the number of characters at the end of a text that may be the beginning of one of the marks."""
    sizes = (size for mark in marks for size in range(1, len(mark)) if text.endswith(mark[:size]))
    return max(sizes, default=0)


def _unknown_at_the_end(text: str) -> int:
    """Return the number of replacement characters at the end that may still become another character."""
    return min(len(text) - len(text.rstrip(UNKNOWN)), UNKNOWN_CHARACTERS)
