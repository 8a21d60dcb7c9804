"""The functions of the rewards `repetition` and `diversity` that run in a child process: n-grams of words."""

from collections import Counter
from collections.abc import Sequence

from slipstream.records import Prompt
from slipstream.verifier.reward import Answer, Verdict, invalid

MAX_CHARACTERS = 262_144
LONGEST_WORD = 32


def ngrams(text: str, size: int) -> list[tuple[str, ...]]:
    """Return all n-grams in order. A word is cut after 32 characters, so that no text is one long word."""
    words = [
        word[start : start + LONGEST_WORD]
        for word in text.lower().split()
        for start in range(0, len(word), LONGEST_WORD)
    ]
    return list(zip(*(words[start:] for start in range(size)), strict=False))


def diversity(prompt: Prompt, answers: Sequence[Answer], *, ngram: int) -> list[Verdict]:
    """Return the share of distinct n-grams that only this answer has.

    An answer that is shorter than one n-gram, or too long, is invalid.
    """
    grams = [
        set(ngrams(answer.text, ngram)) if len(answer.text) <= MAX_CHARACTERS else set() for answer in answers
    ]
    holders = Counter(gram for own in grams for gram in own)
    return [
        Verdict(value=sum(holders[gram] == 1 for gram in own) / len(own))
        if own
        else invalid(f"not between one n-gram and {MAX_CHARACTERS} characters")
        for own in grams
    ]


def repetition(prompt: Prompt, answers: Sequence[Answer], *, ngram: int) -> list[Verdict]:
    """Return distinct n-grams / all n-grams - 1 of each answer; 0 for a text shorter than one n-gram.

    See Demystifying Long Chain-of-Thought Reasoning, arXiv:2502.03373, appendix on the repetition penalty.
    """
    return [_of_one(answer.text, ngram) for answer in answers]


def _of_one(text: str, ngram: int) -> Verdict:
    if len(text) > MAX_CHARACTERS:
        return invalid(f"{len(text)} characters; at most {MAX_CHARACTERS} are read", value=-1.0)
    grams = ngrams(text, ngram)
    return Verdict(value=len(set(grams)) / len(grams) - 1.0 if grams else 0.0)
