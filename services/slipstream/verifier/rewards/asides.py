"""The parts of a text in Markdown that are no prose: code, formulas, LaTeX commands, links and tags.

What opens and does not close is text like any other. The time is linear in the length: a search for the end
of what opens either succeeds, and goes on from there, or is not made again.
"""

import regex  # type: ignore[import-untyped, unused-ignore]

OPENING = regex.compile(
    r"(?P<escaped>\\[$`\\])"
    r"|(?P<whole>(?:\\[A-Za-z]++[ \t]*+)++|https?://[!-~]++|</?[A-Za-z_]{1,32}>)"
    r"|(?P<block>```|\$\$|\\\(|\\\[)"
    r"|(?P<inline>[`$])"
)
CLOSING = {"```": "```", "$$": "$$", "\\(": "\\)", "\\[": "\\]"}


def text_and_asides(text: str) -> tuple[str, list[str]]:
    """The prose of a text, and each part of it that is none."""
    last = {closing: text.rfind(closing) for closing in CLOSING.values()}
    prose: list[str] = []
    asides: list[str] = []
    position = done = line_end = 0
    while opening := OPENING.search(text, position):
        position = begin = opening.end()
        if begin > line_end:
            line_end = _line_end(text, begin)
        end = _end(text, opening, last, line_end)
        if end:
            prose.append(text[done : opening.start()])
            asides.append(text[opening.start() : end])
            position = done = end
    prose.append(text[done:])
    return " ".join(prose), asides


def _line_end(text: str, position: int) -> int:
    found = text.find("\n", position)
    return found if found >= 0 else len(text)


def _end(text: str, opening: "regex.Match[str]", last: dict[str, int], line_end: int) -> int:
    """Where what opens has closed; 0 when it does not."""
    begin, kind = opening.end(), opening.lastgroup
    if kind == "whole":
        return int(begin)
    if kind == "block":
        closing = CLOSING[opening[0]]
        return text.index(closing, begin) + len(closing) if last[closing] >= begin else 0
    if kind == "inline":
        found = text.find(opening[0], begin, line_end)
        return found + 1 if found > begin else 0
    return 0
