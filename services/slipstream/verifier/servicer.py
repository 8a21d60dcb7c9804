"""The Verifier service: one call scores all completions of one prompt."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from slipstream.config.data import RewardName
from slipstream.rpc.codec import finish_reason_from_proto, prompt_from_proto, reward_to_proto
from slipstream.rpc.errors import InvalidRequest
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.types import Outcome, Prompt, Reward
from slipstream.v1 import verifier_pb2 as pb
from slipstream.v1 import verifier_pb2_grpc
from slipstream.verifier.rewards import SLOW, Answer, RewardFunction, judge

Vectors = list[list[Reward]]


class VerifierServicer(verifier_pb2_grpc.VerifierServicer):
    """Judges answers. Invariant: each answer gets one entry a configured reward, in order.

    Cheap rewards run at once, because handing them to a thread would cost more than they do; a group
    with a slow one runs in a thread, so that other calls and health checks are answered meanwhile.
    """

    def __init__(self, rewards: Mapping[RewardName, RewardFunction], *, metrics: Metrics, log: Log) -> None:
        self._rewards = rewards
        self._metrics = metrics
        self._log = log
        self._slow = not SLOW.isdisjoint(rewards)
        for name in rewards:
            for outcome in Outcome:  # so that a rate sees the first error
                metrics.count("scores_total", 0, reward=name, outcome=outcome.value)

    async def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        """Score every answer. Errors: InvalidRequest for no answers or a prompt without ground truth."""
        prompt, answers = _parse(request)
        with self._metrics.timing("score_seconds"):
            if self._slow:
                vectors = await asyncio.to_thread(self._judge_all, prompt, answers)
            else:
                vectors = self._judge_all(prompt, answers)
        self._report(prompt, vectors)
        return pb.ScoreResponse(
            vectors=[pb.RewardVector(rewards=map(reward_to_proto, vector)) for vector in vectors]
        )

    def _judge_all(self, prompt: Prompt, answers: Sequence[Answer]) -> Vectors:
        return [
            [judge(name, function, prompt, answer) for name, function in self._rewards.items()]
            for answer in answers
        ]

    def _report(self, prompt: Prompt, vectors: Vectors) -> None:
        rewards = [reward for vector in vectors for reward in vector]
        for (name, outcome), number in Counter((r.name, r.outcome.value) for r in rewards).items():
            self._metrics.count("scores_total", number, reward=name, outcome=outcome)
        failed = next((reward for reward in rewards if reward.outcome is Outcome.ERROR), None)
        if failed is not None:
            self._log.warning(
                "reward failed", prompt=prompt.prompt_id, reward=failed.name, detail=failed.detail
            )


def _parse(request: pb.ScoreRequest) -> tuple[Prompt, list[Answer]]:
    if not request.answers:
        raise InvalidRequest("Score: no answers; at least one is needed")
    answers = [
        Answer(
            text=answer.text,
            tokens=answer.tokens,
            finish_reason=finish_reason_from_proto(answer.finish_reason),
        )
        for answer in request.answers
    ]
    return prompt_from_proto(request.prompt), answers
