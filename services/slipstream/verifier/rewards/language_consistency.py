"""Is a completion written in the target language? By the scripts of its letters.

By scripts, and not by a classifier of languages: what the reward is for is a chain of thought that mixes
languages (DeepSeek-R1, arXiv:2501.12948, section 2.3.2), mostly of different scripts; a classifier guesses at
single words, and can be led by a few of them. Languages of one script are not told apart.
"""

import regex  # type: ignore[import-untyped, unused-ignore]

from slipstream.config.rewards.shapes import LanguageConsistencyConfig
from slipstream.types import Prompt
from slipstream.verifier.adapters import EachAnswer
from slipstream.verifier.reward import Answer, Reward, Verdict, invalid

MAX_CHARACTERS = 262_144
# What opens and does not close goes on to the end, so that no character is looked at again and again.
ASIDE = regex.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*+`?|\$\$.*?(?:\$\$|\Z)|\$[^$\n]*+\$?|\\\(.*?(?:\\\)|\Z)|\\\[.*?(?:\\\]|\Z)"
    r"|\\[A-Za-z]++|https?://\S*+|</?[A-Za-z_]{1,32}>",
    regex.DOTALL,
)
LETTER = regex.compile(r"\p{L}")


def language_consistency(config: LanguageConsistencyConfig) -> Reward:
    """Letters of the target scripts over all letters; without a letter outside of code it is invalid."""
    wanted = regex.compile(r"[" + "".join(rf"\p{{Script={script}}}" for script in config.scripts) + "]")

    def judge(prompt: Prompt, answer: Answer) -> Verdict:
        if len(answer.text) > MAX_CHARACTERS:
            return invalid(f"{len(answer.text)} characters; at most {MAX_CHARACTERS} are read")
        letters = LETTER.findall(ASIDE.sub(" ", answer.text))
        if not letters:
            return invalid("no letters outside of code, LaTeX and links")
        return Verdict(value=len(wanted.findall("".join(letters))) / len(letters))

    return EachAnswer(judge)
