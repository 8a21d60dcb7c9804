"""Texts that Unicode calls canonically equivalent as one text (NFC), in time linear in their length."""

import asyncio
import unicodedata
from collections.abc import Callable
from typing import TypeVar

import regex  # type: ignore[import-untyped, unused-ignore]

LOOP_CHARACTERS = 8_192
"""Characters that are normalised in the event loop, which takes less time than to start a thread."""
LONGEST_DECOMPOSITION = 4
"""Characters that one of NFC may be in NFD."""
MANY_MARKS = regex.compile(r"\p{M}{31,}")
"""More combining marks in a row than Unicode's Stream-Safe Text Format has (UAX #15, section 13)."""
Result = TypeVar("Result")


def canonical(text: str, *, ignore_case: bool = False) -> str:
    """The text in NFC, case-folded if wanted; one with more than 30 combining marks in a row as it is.

    To sort a run of combining marks takes time quadratic in its length: 33 s for 64,000 of them.
    """
    if not text.isascii() and not MANY_MARKS.search(text):
        text = unicodedata.normalize("NFC", text)
    return text.casefold() if ignore_case else text


def longest_equivalent(text: str) -> int:
    """Length beyond which no text has this one as its canonical one: case folding makes none shorter."""
    return LONGEST_DECOMPOSITION * len(text)


async def beside_the_loop(function: Callable[[], Result], *, characters: int) -> Result:
    """What the function returns, for so many characters: at once for a few, else from a thread."""
    return function() if characters <= LOOP_CHARACTERS else await asyncio.to_thread(function)
