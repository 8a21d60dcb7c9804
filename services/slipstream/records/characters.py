"""Texts that UTF-8 can encode: what a message, a tokenizer and a file can hold."""

import re

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair. A Python str can contain one, for example from the JSON text "\\ud800"."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def without_surrogates(text: str) -> str:
    """Return the text with the replacement character in the place of each lone surrogate."""
    return SURROGATE.sub(REPLACEMENT, text)


def has_surrogates(text: str) -> bool:
    """Return whether UTF-8 cannot encode the text."""
    return SURROGATE.search(text) is not None
