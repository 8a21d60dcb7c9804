"""The Verifier service: one call scores all completions of one prompt."""

from typing import Any

from slipstream.rpc.codec import finish_reason_from_proto, prompt_from_proto, reward_to_proto
from slipstream.v1 import verifier_pb2 as pb
from slipstream.v1 import verifier_pb2_grpc
from slipstream.verifier.reward import Answer
from slipstream.verifier.scorer import Scorer


class VerifierServicer(verifier_pb2_grpc.VerifierServicer):
    """Serves the scorer over gRPC."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    async def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        """Score every answer. Errors: InvalidRequest, UnusableGroundTruth, Busy."""
        answers = [
            Answer(
                text=answer.text,
                tokens=answer.tokens,
                finish_reason=finish_reason_from_proto(answer.finish_reason),
            )
            for answer in request.answers
        ]
        vectors = await self._scorer.score(prompt_from_proto(request.prompt), answers)
        return pb.ScoreResponse(
            vectors=[pb.RewardVector(rewards=map(reward_to_proto, vector)) for vector in vectors]
        )
