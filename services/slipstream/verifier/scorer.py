"""Score a group of answers: every reward at the same time, for gRPC, HTTP and files alike.

score ─▶ slots in the admission queue? ─┬─▶ no:  Busy, with a retry-after hint
                                        └─▶ yes: reward 1 ┐
                                                 reward 2 ├─▶ one reward vector for each answer
                                                 reward 3 ┘
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite

from slipstream.config.sources import BySource, UnknownSource
from slipstream.records import Outcome, Prompt
from slipstream.records import Reward as Component
from slipstream.rpc.errors import InvalidRequest
from slipstream.telemetry.logs import Log, printable
from slipstream.telemetry.metrics import Metrics
from slipstream.verifier.admission import AdmissionQueue
from slipstream.verifier.reward import Answer, Reward, UnusableGroundTruth, Verdict, describe, failed

MAX_DETAIL = 300
MAX_ANSWER = 200
"""Characters of an extracted answer that are returned. An evaluation compares them for its majority vote."""
REPORTED_PROMPTS = 10_000
"""Unusable prompts that are remembered, so that each is logged once."""

Vectors = list[list[Component]]


class Scorer:
    """Scores groups by all rewards.

    Invariants: each answer gets one component of each reward that applies to its prompt, in order; a failure
    is an Outcome.ERROR, never a score of 0 (invariant 11); no answer is scored without a slot of the
    admission queue.
    """

    def __init__(
        self,
        rewards: Mapping[str, Reward],
        *,
        queue: AdmissionQueue,
        metrics: Metrics,
        log: Log,
        applying: BySource[frozenset[str]] | None = None,
    ) -> None:
        """`applying`: names of the rewards that apply, by the source of a prompt; None: all of them."""
        self._rewards = rewards
        self._applying = applying
        self._queue = queue
        self._metrics = metrics
        self._log = log
        self._unusable: dict[str, None] = {}
        for name in rewards:
            for outcome in Outcome:  # a rate in Prometheus needs the 0 before the first error
                metrics.count("scores_total", 0, reward=name, outcome=outcome.value)

    async def score(self, prompt: Prompt, answers: Sequence[Answer]) -> Vectors:
        """Return the reward vectors, in the order of the answers.

        Errors: Busy if the admission queue is full; InvalidRequest for no answers, or a source that the run
        does not have; UnusableGroundTruth.
        """
        if not answers:
            raise InvalidRequest("Score: no answers; at least one is needed")
        rewards = self._rewards_of(prompt)
        self._queue.admit(len(answers))
        started = time.monotonic()
        try:
            columns = await self._columns(rewards, prompt, answers)
        except UnusableGroundTruth as error:
            self._report_unusable(prompt, error)
            raise
        finally:
            seconds = time.monotonic() - started
            self._queue.release(len(answers), seconds=seconds)
            self._metrics.observe("score_seconds", seconds)
        vectors = [[column[place] for column in columns] for place in range(len(answers))]
        self._report(prompt, columns)
        return vectors

    async def close(self) -> None:
        """Close every reward. Call it when no answer is being scored."""
        for reward in self._rewards.values():
            await reward.close()

    def _rewards_of(self, prompt: Prompt) -> Mapping[str, Reward]:
        """Return the rewards that apply to a prompt. Errors: InvalidRequest."""
        if self._applying is None:
            return self._rewards
        try:
            names = self._applying.of(prompt.source)
        except UnknownSource as error:
            raise InvalidRequest(f"Score: {error}") from error
        return {name: reward for name, reward in self._rewards.items() if name in names}

    async def _columns(
        self, rewards: Mapping[str, Reward], prompt: Prompt, answers: Sequence[Answer]
    ) -> Vectors:
        """Return the components, one list for each reward. Errors: UnusableGroundTruth."""
        calls = [self._column(name, reward, prompt, answers) for name, reward in rewards.items()]
        if len(calls) == 1:  # without the cost of a task
            return [await calls[0]]
        columns = [asyncio.create_task(call) for call in calls]
        try:
            return list(await asyncio.gather(*columns))
        except UnusableGroundTruth:
            for column in columns:  # the request is refused, so no other score is needed
                column.cancel()
            raise

    async def _column(
        self, name: str, reward: Reward, prompt: Prompt, answers: Sequence[Answer]
    ) -> list[Component]:
        started = time.monotonic()
        try:
            verdicts = await _verdicts(reward, prompt, answers)
        except UnusableGroundTruth as error:
            reason = f"{error.reason} (reward `{name}`)"
            raise UnusableGroundTruth(reason, prompt_id=error.prompt_id) from error
        self._metrics.observe("reward_seconds", time.monotonic() - started, reward=name)
        return [_component(name, verdict) for verdict in verdicts]

    def _report(self, prompt: Prompt, columns: Vectors) -> None:
        components = [component for column in columns for component in column]
        for (name, outcome), number in Counter((c.name, c.outcome.value) for c in components).items():
            self._metrics.count("scores_total", number, reward=name, outcome=outcome)
        for component in components:
            if component.detail:
                self._log.debug(
                    "verdict",
                    prompt=prompt.prompt_id,
                    reward=component.name,
                    outcome=component.outcome.value,
                    detail=component.detail,
                )
        for column in columns:
            error = next((component for component in column if component.outcome is Outcome.ERROR), None)
            if error is not None:
                self._log.warning(
                    "reward failed", prompt=prompt.prompt_id, reward=error.name, detail=error.detail
                )

    def _report_unusable(self, prompt: Prompt, error: UnusableGroundTruth) -> None:
        """Log the error, unless the prompt is one of the last REPORTED_PROMPTS that were logged."""
        if prompt.prompt_id in self._unusable:
            return
        self._unusable[prompt.prompt_id] = None
        if len(self._unusable) > REPORTED_PROMPTS:
            del self._unusable[next(iter(self._unusable))]
        self._log.error("prompt cannot be judged", prompt=prompt.prompt_id, reason=str(error))


def _component(name: str, verdict: Verdict) -> Component:
    """Return a verdict for the wire: finite numbers, steps with rising ends, and texts in valid UTF-8."""
    ends = [0, *(step.text_end for step in verdict.steps)]
    if not isfinite(verdict.value):
        verdict = failed(f"its score is {verdict.value}")
    elif not all(isfinite(step.value) for step in verdict.steps):
        verdict = failed("the score of a step is no finite number")
    elif any(end <= start for start, end in pairwise(ends)):
        verdict = failed(f"its steps end at the characters {ends[1:]}; they must rise")
    detail = printable(verdict.detail[:MAX_DETAIL].encode("utf-8", "replace").decode())
    answer = verdict.answer[:MAX_ANSWER].encode("utf-8", "replace").decode()
    return Component(
        name=name,
        value=verdict.value,
        outcome=verdict.outcome,
        detail=detail,
        answer=answer,
        steps=verdict.steps,
    )


async def _verdicts(reward: Reward, prompt: Prompt, answers: Sequence[Answer]) -> Sequence[Verdict]:
    try:
        verdicts = await reward.score(prompt, answers)
        assert len(verdicts) == len(answers), f"{len(verdicts)} verdicts for {len(answers)} answers"
    except UnusableGroundTruth:
        raise
    except Exception as error:
        return [failed(describe(error))] * len(answers)
    return verdicts
