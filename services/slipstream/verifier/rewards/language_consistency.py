"""Is a completion written in the target language? By the scripts of its letters.

By scripts, and not by a classifier of languages: what the reward is for is a chain of thought that mixes
languages (DeepSeek-R1, arXiv:2501.12948, section 2.3.2), mostly of different scripts; a classifier guesses at
single words, and can be led by a few of them. Languages of one script are not told apart.
"""

from collections.abc import Sequence
from typing import Any

import regex  # type: ignore[import-untyped, unused-ignore]

from slipstream.types import Prompt
from slipstream.verifier.reward import Answer, Verdict, invalid

MAX_CHARACTERS = 262_144
# What opens and does not close goes on to the end, so that no character is looked at again and again.
ASIDE = regex.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*+`?|\$\$.*?(?:\$\$|\Z)|\$[^$\n]*+\$?|\\\(.*?(?:\\\)|\Z)|\\\[.*?(?:\\\]|\Z)"
    r"|\\[A-Za-z]++|https?://\S*+|</?[A-Za-z_]{1,32}>",
    regex.DOTALL,
)
LETTER = regex.compile(r"\p{L}")


def judge(prompt: Prompt, answers: Sequence[Answer], *, scripts: Sequence[str]) -> list[Verdict]:
    """Letters of the target scripts over all letters; without a letter outside of code it is invalid."""
    wanted = regex.compile(r"[" + "".join(rf"\p{{Script={script}}}" for script in scripts) + "]")
    return [_one(answer.text, wanted) for answer in answers]


def _one(text: str, wanted: Any) -> Verdict:
    if len(text) > MAX_CHARACTERS:
        return invalid(f"{len(text)} characters; at most {MAX_CHARACTERS} are read")
    letters = LETTER.findall(ASIDE.sub(" ", text))
    if not letters:
        return invalid("no letters outside of code, LaTeX and links")
    return Verdict(value=len(wanted.findall("".join(letters))) / len(letters))
