"""The content of the last \\boxed{...} of a text, in time linear in its length."""

import re

_OPEN = "\\boxed{"
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)


def last_boxed(text: str) -> str | None:
    """What stands in the last \\boxed{...}; None when its braces do not close, or there is none."""
    start = text.rfind(_OPEN)
    if start < 0:
        return None
    depth, begin = 1, start + len(_OPEN)
    for brace in _BRACES.finditer(text, begin):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if not depth:
            return text[begin : brace.start()]
    return None
