"""The reward `diversity`: the share of an answer's n-grams that no other answer of its group has."""

from collections import Counter
from collections.abc import Sequence

from slipstream.records import Prompt
from slipstream.verifier.reward import Answer, Verdict, invalid
from slipstream.verifier.rewards.ngrams import MAX_CHARACTERS, ngrams


def score(prompt: Prompt, answers: Sequence[Answer], *, ngram: int) -> list[Verdict]:
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
