"""Read the ground truth of a prompt."""

import re
from fractions import Fraction
from functools import lru_cache

from slipstream.answers import latex_input, number
from slipstream.records import Prompt
from slipstream.verifier.reward import UnusableGroundTruth

_WHOLE_NUMBER = re.compile(r"[0-9]{1,18}")
MAX_NUMBERS = 64


def expected_answer(prompt: Prompt) -> str:
    """Return the ground truth without surrounding white space. Errors: UnusableGroundTruth if it is empty."""
    expected = prompt.answer.strip()
    if not expected:
        raise UnusableGroundTruth("no `answer`; the ground truth is needed", prompt_id=prompt.prompt_id)
    return expected


def expected_number(prompt: Prompt) -> tuple[Fraction, bool]:
    """Return the ground truth as a number, and whether it is in percent. Errors: UnusableGroundTruth."""
    try:
        return _number(expected_answer(prompt))
    except number.NotANumber as error:
        raise UnusableGroundTruth(f"`answer`: {error}", prompt_id=prompt.prompt_id) from error


def expected_expression(prompt: Prompt) -> str:
    """Return the ground truth as a mathematical expression within the limits. Errors: UnusableGroundTruth."""
    try:
        return _expression(expected_answer(prompt))
    except latex_input.UnsupportedExpression as error:
        raise UnusableGroundTruth(f"`answer`: {error}", prompt_id=prompt.prompt_id) from error


_number = lru_cache(maxsize=256)(number.read_number)
_expression = lru_cache(maxsize=256)(latex_input.normalize)


def countdown_puzzle(prompt: Prompt) -> tuple[tuple[int, ...], int]:
    """Return the given numbers (field `numbers`: "3 8 1" or "[3, 8, 1]") and the target (`answer`).

    Errors: UnusableGroundTruth naming the field that is missing or is no whole number.
    """
    written = prompt.fields.get("numbers", "").strip("[] ").replace(",", " ").split()
    if not written or len(written) > MAX_NUMBERS:
        reason = f"field `numbers` needs 1 to {MAX_NUMBERS} numbers"
        raise UnusableGroundTruth(reason, prompt_id=prompt.prompt_id)
    target = _whole(prompt, expected_answer(prompt), "`answer`")
    return tuple(_whole(prompt, word, "field `numbers`") for word in written), target


def _whole(prompt: Prompt, word: str, where: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(word):
        reason = f"{where}: {word[:40]!a} is not a whole number of at most 18 digits"
        raise UnusableGroundTruth(reason, prompt_id=prompt.prompt_id)
    return int(word)
