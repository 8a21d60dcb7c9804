"""The fields of a prompt that each kind of reward needs, as far as they are cheap to check."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from slipstream.answers import latex_input, number, strict_json
from slipstream.config.rewards import GroundTruth, RewardSection
from slipstream.records import Prompt

_NUMBERS = re.compile(r"[\[\],\s]*[0-9]{1,18}([,\s]+[0-9]{1,18}){0,63}[\[\],\s]*")
_WHOLE = re.compile(r"[0-9]{1,18}")


def unmet_need(reward: RewardSection, prompt: Prompt) -> str:
    """Return what the prompt lacks for a reward; empty if it lacks nothing.

    Expensive checks (is the ground truth a valid expression?) are left to the verifier, at the first answer.
    """
    try:
        NEEDS[reward.facts.ground_truth](reward, prompt)
    except ValueError as error:
        return str(error)
    return ""


def _nothing(reward: Any, prompt: Prompt) -> None:
    """Needs no ground truth."""


def _answer(reward: Any, prompt: Prompt) -> str:
    answer = prompt.answer.strip()
    if not answer:
        raise ValueError("has no `answer`, and the ground truth is needed")
    return answer


def _number(reward: Any, prompt: Prompt) -> None:
    answer = _answer(reward, prompt)
    try:
        number.read_number(answer)
    except ValueError as error:
        raise ValueError(f"has the answer {answer[:40]!r}, which cannot be read: {error}") from error


def _expression(reward: Any, prompt: Prompt) -> None:
    answer = _answer(reward, prompt)
    try:
        latex_input.normalize(answer)
    except ValueError as error:
        raise ValueError(f"has the answer {answer[:40]!r}, which cannot be read: {error}") from error


def _puzzle(reward: Any, prompt: Prompt) -> None:
    numbers, answer = prompt.fields.get("numbers", ""), prompt.answer.strip()
    if not _NUMBERS.fullmatch(numbers):
        raise ValueError(f"has the numbers {numbers[:40]!r}, and needs whole numbers")
    if not _WHOLE.fullmatch(answer):
        raise ValueError(f"has the answer {answer[:40]!r}, and needs a whole number")


def _schema(reward: Any, prompt: Prompt) -> None:
    if reward.schema_field is None:
        return
    try:
        strict_json.check_schema(strict_json.read_json(prompt.fields.get(reward.schema_field, "")))
    except ImportError:  # jsonschema is installed in the verifier
        return
    except ValueError as error:
        raise ValueError(f"has in field `{reward.schema_field}`: {error}") from error


NEEDS: Final[Mapping[GroundTruth, Callable[[Any, Prompt], object]]] = {
    "none": _nothing,
    "answer": _answer,
    "number": _number,
    "expression": _expression,
    "countdown": _puzzle,
    "schema": _schema,
    "tests": _nothing,
}
"""Ground truth → what raises ValueError for a prompt without it. Tests are read by the verifier."""
