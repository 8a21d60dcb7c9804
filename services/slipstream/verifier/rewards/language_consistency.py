"""Is a completion written in the target language? By the scripts of its letters.

By scripts, and not by a classifier of languages: what the reward is for is a chain of thought that mixes
languages (DeepSeek-R1, arXiv:2501.12948, section 2.3.2), mostly of different scripts; a classifier guesses at
single words, and can be led by a few of them. Languages of one script are not told apart.
"""

from collections.abc import Sequence
from typing import Any

import regex  # type: ignore[import-untyped, unused-ignore]

from slipstream.records import Prompt
from slipstream.verifier.reward import Answer, Verdict, invalid
from slipstream.verifier.rewards.asides import text_and_asides

MAX_CHARACTERS = 262_144
LETTER = regex.compile(r"\p{L}")
FOREIGN_TO_CODE = regex.compile(r"(?V1)[\p{L}--[A-Za-z]--\p{Script=Greek}--\p{Script=Common}]")
"""Letters that code, formulas and links have no use for."""
PROSE = regex.compile(r"(?:\\?[A-Za-z][A-Za-z']*+[,;:.!?]?[ \t]++){7,}+\\?[A-Za-z]++")
"""Eight words in a row, which are prose wherever they are."""


def score(prompt: Prompt, answers: Sequence[Answer], *, scripts: Sequence[str]) -> list[Verdict]:
    """Letters of the target scripts over all letters; without a letter outside of code it is invalid.

    Of code, formulas, links and tags count only the letters that no code needs, and eight words in a row.
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
