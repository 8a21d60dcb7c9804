"""The function of the reward `language_consistency` that runs in a child process.

It counts the scripts of the letters. `text_and_asides` splits a Markdown text into its prose, and its code,
formulas and links, of which only some letters count. The reward is meant for chains of thought that mix
languages (DeepSeek-R1, arXiv:2501.12948, section 2.3.2), mostly languages of different scripts. A classifier
of languages would guess at single words, and a few words can mislead it. Languages that share a script are
not told apart.
"""

from collections.abc import Sequence
from typing import Any

import regex  # type: ignore[import-untyped, unused-ignore]

from slipstream.records import Prompt
from slipstream.verifier.reward import Answer, Verdict, invalid

MAX_CHARACTERS = 262_144
LETTER = regex.compile(r"\p{L}")
FOREIGN_TO_CODE = regex.compile(r"(?V1)[\p{L}--[A-Za-z]--\p{Script=Greek}--\p{Script=Common}]")
"""Letters that do not occur in code, formulas and links."""
PROSE = regex.compile(r"(?:\\?[A-Za-z][A-Za-z']*+[,;:.!?]?[ \t]++){7,}+\\?[A-Za-z]++")
"""Eight words in a row: they are prose, even inside of code, a formula or a link."""
OPENING = regex.compile(
    r"(?P<escaped>\\[$`\\])"
    r"|(?P<whole>(?:\\[A-Za-z]++[ \t]*+)++|https?://[!-~]++|</?[A-Za-z_]{1,32}>)"
    r"|(?P<block>```|\$\$|\\\(|\\\[)"
    r"|(?P<inline>[`$])"
)
CLOSING = {"```": "```", "$$": "$$", "\\(": "\\)", "\\[": "\\]"}


def score(prompt: Prompt, answers: Sequence[Answer], *, scripts: Sequence[str]) -> list[Verdict]:
    """Return the number of letters in the target scripts over the number of all letters.

    In code, formulas, links and tags only FOREIGN_TO_CODE and PROSE count. An answer without a letter outside
    of them is invalid.
    """
    wanted = regex.compile(r"[" + "".join(rf"\p{{Script={script}}}" for script in scripts) + "]")
    return [_one(answer.text, wanted) for answer in answers]


def _one(text: str, wanted: Any) -> Verdict:
    if len(text) > MAX_CHARACTERS:
        return invalid(f"{len(text)} characters; at most {MAX_CHARACTERS} are read")
    outside, asides = text_and_asides(text)
    letters = LETTER.findall(outside)
    if not letters:
        return invalid("no letters outside of code, LaTeX and links")
    for aside in asides:
        letters += FOREIGN_TO_CODE.findall(aside)
        letters += LETTER.findall(" ".join(PROSE.findall(aside)))
    return Verdict(value=len(wanted.findall("".join(letters))) / len(letters))


def text_and_asides(text: str) -> tuple[str, list[str]]:
    """Return the prose of a Markdown text, and the rest: code, formulas, LaTeX commands, links and tags.

    A delimiter that opens and does not close counts as prose. The time is linear in the length of the text: a
    search for a closing delimiter either succeeds, and the scan continues behind it, or is not repeated.
    """
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
