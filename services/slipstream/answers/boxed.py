"""Find the last \\boxed{...} of a text, in linear time."""

import re

_OPEN = re.compile(r"\\(?:boxed|fbox) ?\{")
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)


def last_boxed(text: str) -> str | None:
    """Return the content of the last \\boxed{...}; None if it is missing, or its braces do not close."""
    begin = 0
    for opening in _OPEN.finditer(text):
        begin = opening.end()
    depth = 1 if begin else 0
    if not depth:
        return None
    for brace in _BRACES.finditer(text, begin):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if not depth:
            return text[begin : brace.start()]
    return None
