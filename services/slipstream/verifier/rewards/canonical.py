"""Normalise texts to Unicode NFC, so that canonically equivalent texts are equal, in linear time."""

import asyncio
import unicodedata
from collections.abc import Callable
from typing import TypeVar

import regex  # type: ignore[import-untyped, unused-ignore]

LOOP_CHARACTERS = 8_192
"""Most characters that are normalised in the event loop; a thread would take longer to start."""
LONGEST_DECOMPOSITION = 4
"""Most characters of NFD that one character of NFC may have."""
MANY_MARKS = regex.compile(r"\p{M}{31,}")
"""More combining marks in a row than Unicode's Stream-Safe Text Format allows (UAX #15, section 13)."""
Result = TypeVar("Result")


def canonical(text: str, *, ignore_case: bool = False) -> str:
    """Return the text in NFC, and case-folded with `ignore_case`.

    A text with more than 30 combining marks in a row is not normalised: sorting the marks takes time
    quadratic in their number, 33 s for 64,000 of them.
    """
    if not text.isascii() and not MANY_MARKS.search(text):
        text = unicodedata.normalize("NFC", text)
    return text.casefold() if ignore_case else text


def longest_equivalent(text: str) -> int:
    """Return the length of the longest text whose canonical form is this text."""
    return LONGEST_DECOMPOSITION * len(text)


async def beside_the_loop(function: Callable[[], Result], *, characters: int) -> Result:
    """Call a function that reads `characters` characters: in the event loop for a few, else in a thread."""
    return function() if characters <= LOOP_CHARACTERS else await asyncio.to_thread(function)
