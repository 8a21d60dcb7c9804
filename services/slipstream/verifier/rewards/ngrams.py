"""Words of a text and their n-grams."""

MAX_CHARACTERS = 262_144
LONGEST_WORD = 32


def ngrams(text: str, size: int) -> list[tuple[str, ...]]:
    """All n-grams in order; a word of more than 32 characters is several, so no text is one long word."""
    words = [
        word[start : start + LONGEST_WORD]
        for word in text.lower().split()
        for start in range(0, len(word), LONGEST_WORD)
    ]
    return list(zip(*(words[start:] for start in range(size)), strict=False))
