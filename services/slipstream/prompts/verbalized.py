"""Verbalized sampling as text: the prompt that asks for answers with probabilities, and what comes back.

See Verbalized Sampling: How to Mitigate Mode Collapse and Unlock LLM Diversity, arXiv:2510.01171.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.records import ChatMessage, Prompt

OPENING = re.compile(r"<answer\b([^<>]*)>", re.IGNORECASE)
ENDING = re.compile(r"</answer\s*>|<answer\b", re.IGNORECASE)
NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(%?)")
INSTRUCTION = (
    "Give {candidates} different answers to this, each with the probability that you would give it, in this "
    'form and without anything else:\n<answer probability="0.5">the answer</answer>'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One stated answer, and its share of the stated probabilities: those of one generation sum to 1."""

    text: str
    probability: float


def ask(prompt: Prompt, candidates: int) -> Prompt:
    """The prompt with the instruction after it: at the end of its text, or of its last message."""
    instruction = INSTRUCTION.format(candidates=candidates)
    if prompt.text:
        return replace(prompt, text=f"{prompt.text}\n\n{instruction}")
    *before, last = prompt.messages
    asking = ChatMessage(role=last.role, content=f"{last.content}\n\n{instruction}")
    return replace(prompt, messages=(*before, asking))


def parse(text: str) -> tuple[Candidate, ...]:
    """The candidates that a text states, at least one; a last one that was cut off counts as far as it goes.

    One without a readable probability is never drawn, unless none has one: then all are equally likely.
    A text without candidates is one answer.
    """
    found = [(text[start:end].strip(), weight) for start, end, weight in _places(text)]
    if not found:
        return (Candidate(text=text, probability=1.0),)
    total = math.fsum(weight for _, weight in found)
    if total == 0:
        return tuple(Candidate(text=answer, probability=1.0 / len(found)) for answer, _ in found)
    return tuple(Candidate(text=answer, probability=weight / total) for answer, weight in found)


def is_open(text: str) -> bool:
    """Whether the last candidate of a text has no end, or the text states none: it may have been cut off."""
    starts = [opening.end() for opening in OPENING.finditer(text)]
    return not starts or ENDING.search(text, starts[-1]) is None


def choose(candidates: Sequence[Candidate], draw: float) -> Candidate:
    """The candidate on whose share of [0, 1), laid end to end, `draw` falls."""
    reached = 0.0
    for candidate in candidates:
        reached += candidate.probability
        if draw < reached:
            return candidate
    return max(reversed(candidates), key=lambda candidate: candidate.probability > 0)


def _places(text: str) -> list[tuple[int, int, float]]:
    """Start, end and weight of each stated answer."""
    places, position = [], 0
    while opening := OPENING.search(text, position):
        ending = ENDING.search(text, opening.end())
        position = ending.start() if ending else len(text)
        places.append((opening.end(), position, _weight(opening.group(1))))
    return places


def _weight(attributes: str) -> float:
    """The probability in the attributes of an answer, 0 when there is none to read."""
    number = NUMBER.search(attributes)
    if number is None or "-" in attributes[: number.start()]:
        return 0.0
    value = float(number.group(1)) / (100.0 if number.group(2) else 1.0)
    return value if math.isfinite(value) else 0.0
