"""Matching of a whole completion against a configured pattern, in bounded time.

The text is a model's, and a pattern can need time exponential in it. Python's `re` holds the interpreter
lock and cannot be interrupted; the `regex` package releases it and stops at a deadline.
"""

import regex  # type: ignore[import-untyped, unused-ignore]

MAX_CHARACTERS = 65_536
MATCH_SECONDS = 0.1


class MatchTooExpensive(Exception):
    """The text is longer than MAX_CHARACTERS, or the match took longer than MATCH_SECONDS."""


class Format:
    """A compiled pattern."""

    def __init__(self, pattern: str) -> None:
        """Errors: ValueError when it is not a regular expression."""
        try:
            self._pattern = regex.compile(pattern)
        except (regex.error, MemoryError, RecursionError, OverflowError) as error:
            raise ValueError(f"not a usable regular expression: {error or type(error).__name__}") from error

    def matches(self, text: str) -> bool:
        """Whether the whole text matches. Errors: MatchTooExpensive."""
        if len(text) > MAX_CHARACTERS:
            raise MatchTooExpensive(f"{len(text)} characters; at most {MAX_CHARACTERS} are matched")
        try:
            return self._pattern.fullmatch(text, timeout=MATCH_SECONDS, concurrent=True) is not None
        except TimeoutError as error:
            raise MatchTooExpensive(f"the match took longer than {MATCH_SECONDS:g} s") from error
