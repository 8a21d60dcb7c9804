"""Split a Markdown text into prose and the rest: code, formulas, LaTeX commands, links and tags.

A delimiter that opens and does not close counts as prose. The time is linear in the length of the text: a
search for a closing delimiter either succeeds, and the scan continues behind it, or is not repeated.
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
    """Return the prose of a text, and its other parts."""
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
    end = text.find("\n", position)
    return end if end >= 0 else len(text)


def _end(text: str, opening: "regex.Match[str]", last: dict[str, int], line_end: int) -> int:
    """Return the position behind the closing delimiter; 0 if there is none."""
    begin, kind = opening.end(), opening.lastgroup
    if kind == "whole":
        return int(begin)
    if kind == "block":
        closing = CLOSING[opening[0]]
        return text.index(closing, begin) + len(closing) if last[closing] >= begin else 0
    if kind == "inline":
        end = text.find(opening[0], begin, line_end)
        return end + 1 if end > begin else 0
    return 0
