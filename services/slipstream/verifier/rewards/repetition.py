"""The function of the reward `repetition` that runs in a child process."""

from collections.abc import Sequence

from slipstream.records import Prompt
from slipstream.verifier.reward import Answer, Verdict, invalid
from slipstream.verifier.rewards.ngrams import MAX_CHARACTERS, ngrams


def score(prompt: Prompt, answers: Sequence[Answer], *, ngram: int) -> list[Verdict]:
    """Return distinct n-grams / all n-grams - 1 of each answer; 0 for a text shorter than one n-gram.

    See Demystifying Long Chain-of-Thought Reasoning, arXiv:2502.03373, appendix on the repetition penalty.
    """
    return [_one(answer.text, ngram) for answer in answers]


def _one(text: str, ngram: int) -> Verdict:
    if len(text) > MAX_CHARACTERS:
        return invalid(f"{len(text)} characters; at most {MAX_CHARACTERS} are read", value=-1.0)
    grams = ngrams(text, ngram)
    return Verdict(value=len(set(grams)) / len(grams) - 1.0 if grams else 0.0)
