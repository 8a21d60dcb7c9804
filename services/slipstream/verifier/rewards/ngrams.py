"""The n-grams of the words of a text."""

MAX_CHARACTERS = 262_144
LONGEST_WORD = 32


def ngrams(text: str, size: int) -> list[tuple[str, ...]]:
    """Return all n-grams in order. A word is cut after 32 characters, so that no text is one long word."""
    words = [
        word[start : start + LONGEST_WORD]
        for word in text.lower().split()
        for start in range(0, len(word), LONGEST_WORD)
    ]
    return list(zip(*(words[start:] for start in range(size)), strict=False))
