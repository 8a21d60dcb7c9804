"""Answers and verdicts as JSON, for the messages between the verifier and its children."""

from typing import Any

from slipstream.records import FinishReason, Outcome, StepReward
from slipstream.verifier.reward import Answer, Verdict


def answer_to_json(answer: Answer) -> list[Any]:
    """Return an answer as JSON."""
    return [answer.text, answer.tokens, answer.finish_reason.value]


def answer_from_json(value: list[Any]) -> Answer:
    """Return the answer in JSON."""
    text, tokens, reason = value
    return Answer(text=text, tokens=tokens, finish_reason=FinishReason(reason))


def verdict_to_json(verdict: Verdict) -> list[Any]:
    """Return a verdict as JSON."""
    steps = [[step.value, step.text_end] for step in verdict.steps]
    return [verdict.value, verdict.outcome.value, verdict.detail, steps]


def verdict_from_json(value: list[Any]) -> Verdict:
    """Return the verdict in JSON."""
    number, outcome, detail, pairs = value
    steps = tuple(StepReward(value=score, text_end=end) for score, end in pairs)
    return Verdict(value=number, outcome=Outcome(outcome), detail=detail, steps=steps)
