"""The held-out split: it depends on the prompt alone, so that every replica and every run agrees."""

from collections.abc import Callable, Iterable
from hashlib import blake2b

HELD_OUT_ONE_IN = 10
DIGEST_BYTES = 8
DIGESTS = 2.0 ** (8 * DIGEST_BYTES)


def digest(text: str) -> int:
    """Return 64 bits of BLAKE2b, which are the same in every process (unlike `hash`)."""
    return int.from_bytes(blake2b(text.encode(), digest_size=DIGEST_BYTES).digest(), "big")


def in_fraction(canonical: str, fraction: float) -> bool:
    """Return True for about `fraction` of all texts."""
    return digest(canonical) < fraction * DIGESTS


def held_out_rule(name: str, canonicals: Iterable[str]) -> Callable[[str], bool]:
    """Return the function that decides whether a canonical text of a generated task is held out.

    By its digest, one text in ten is held out. If that leaves one side empty, as in a task of very few
    prompts, only the text with the smallest digest is held out. Errors: ValueError for fewer than two
    distinct texts.
    """
    seen: set[int] = set()
    sides: set[bool] = set()
    for canonical in canonicals:
        seen.add(digest(canonical))
        sides.add(_one_in_ten(canonical))
        if len(sides) == 2:
            return _one_in_ten
    if len(seen) < 2:
        raise ValueError(f"{name}: too few distinct prompts to hold any out; make the task larger")
    least = min(seen)
    return lambda canonical: digest(canonical) == least


def _one_in_ten(canonical: str) -> bool:
    return digest(canonical) % HELD_OUT_ONE_IN == 0
