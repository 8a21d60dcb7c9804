"""The function of the reward `language_consistency` that runs in a child process.

It counts the scripts of the letters. The reward is meant for chains of thought that mix languages
(DeepSeek-R1, arXiv:2501.12948, section 2.3.2), mostly languages of different scripts. A classifier of
languages would guess at single words, and a few words can mislead it. Languages that share a script are not
told apart.
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
"""Letters that do not occur in code, formulas and links."""
PROSE = regex.compile(r"(?:\\?[A-Za-z][A-Za-z']*+[,;:.!?]?[ \t]++){7,}+\\?[A-Za-z]++")
"""Eight words in a row: they are prose, even inside of code, a formula or a link."""


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
