"""The text of verbalized sampling: a prompt for several answers with probabilities, and its parser.

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
    """One stated answer with its normalised probability; those of one generation sum to 1."""

    text: str
    probability: float


def ask(prompt: Prompt, candidates: int) -> Prompt:
    """Return the prompt with the instruction at the end of its text or of its last message."""
    instruction = INSTRUCTION.format(candidates=candidates)
    if prompt.text:
        return replace(prompt, text=f"{prompt.text}\n\n{instruction}")
    *before, last = prompt.messages
    instructed = ChatMessage(role=last.role, content=f"{last.content}\n\n{instruction}")
    return replace(prompt, messages=(*before, instructed))


def parse(text: str) -> tuple[Candidate, ...]:
    """Return the candidates in a text, at least one. A last candidate that was cut off is included.

    A candidate without a readable probability has probability 0. If no candidate has one, all are equally
    likely. A text without candidates is one answer of probability 1.
    """
    stated = [(text[start:end].strip(), weight) for start, end, weight in _stated_answers(text)]
    if not stated:
        return (Candidate(text=text, probability=1.0),)
    total = math.fsum(weight for _, weight in stated)
    if total == 0:
        return tuple(Candidate(text=answer, probability=1.0 / len(stated)) for answer, _ in stated)
    return tuple(Candidate(text=answer, probability=weight / total) for answer, weight in stated)


def is_open(text: str) -> bool:
    """Return whether the text has no candidates, or its last one has no end: both may have been cut off."""
    starts = [opening.end() for opening in OPENING.finditer(text)]
    return not starts or ENDING.search(text, starts[-1]) is None


def choose(candidates: Sequence[Candidate], draw: float) -> Candidate:
    """Return the candidate drawn by `draw` in [0, 1), with the probabilities laid end to end."""
    reached = 0.0
    for candidate in candidates:
        reached += candidate.probability
        if draw < reached:
            return candidate
    return max(reversed(candidates), key=lambda candidate: candidate.probability > 0)


def _stated_answers(text: str) -> list[tuple[int, int, float]]:
    """Return start, end and weight of each stated answer."""
    stated, position = [], 0
    while opening := OPENING.search(text, position):
        ending = ENDING.search(text, opening.end())
        position = ending.start() if ending else len(text)
        stated.append((opening.end(), position, _weight(opening.group(1))))
    return stated


def _weight(attributes: str) -> float:
    """Return the probability in the attributes of an answer; 0 if there is no readable one."""
    number = NUMBER.search(attributes)
    if number is None or "-" in attributes[: number.start()]:
        return 0.0
    value = float(number.group(1)) / (100.0 if number.group(2) else 1.0)
    return value if math.isfinite(value) else 0.0
