"""Rewards of an answer beside the others of its group: duplicates, and what is new in it.

Rollouts send the whole group again when an answer of it has to be tried again (config/rewards/groups.py).
"""

import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

from slipstream.config.rewards.shapes import DiversityConfig, NoRepeatConfig
from slipstream.types import Prompt
from slipstream.verifier.reward import Answer, Reward, Verdict, invalid
from slipstream.verifier.rewards.ngrams import MAX_CHARACTERS, ngrams

GroupFunction = Callable[[Sequence[Answer]], list[Verdict]]


class OfGroup:
    """A cheap pure function of all answers to a prompt."""

    def __init__(self, function: GroupFunction) -> None:
        self._function = function

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Verdict]:
        """The verdicts, in order."""
        return self._function(answers)

    async def close(self) -> None:
        """Nothing is held."""


def no_repeat(config: NoRepeatConfig) -> Reward:
    """1 for an answer that comes once; what equal ones get is configured."""

    def judge(answers: Sequence[Answer]) -> list[Verdict]:
        texts = [unicodedata.normalize("NFC", " ".join(answer.text.split())) for answer in answers]
        texts = [text.casefold() for text in texts] if config.ignore_case else texts
        times, before = Counter(texts), Counter[str]()
        verdicts = []
        for text in texts:
            later = before[text] > 0
            before[text] += 1
            score = {"later": float(not later), "all": float(times[text] == 1), "share": 1 / times[text]}
            verdicts.append(Verdict(value=score[config.duplicates]) if text else invalid("empty answer"))
        return verdicts

    return OfGroup(judge)


def diversity(config: DiversityConfig) -> Reward:
    """The share of n-grams of its own. An answer shorter than one n-gram, or too long, is invalid."""

    def judge(answers: Sequence[Answer]) -> list[Verdict]:
        grams = [
            set(ngrams(answer.text, config.ngram)) if len(answer.text) <= MAX_CHARACTERS else set()
            for answer in answers
        ]
        holders = Counter(gram for own in grams for gram in own)
        return [
            Verdict(value=sum(holders[gram] == 1 for gram in own) / len(own))
            if own
            else invalid(f"not between one n-gram and {MAX_CHARACTERS} characters")
            for own in grams
        ]

    return OfGroup(judge)
