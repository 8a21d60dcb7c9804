"""The Verifier service: one method scores all completions of one prompt, one runs a program of the policy."""

from typing import Any

from slipstream.rpc.codec import finish_reason_from_proto, prompt_from_proto, reward_to_proto
from slipstream.v1 import verifier_pb2 as pb
from slipstream.v1 import verifier_pb2_grpc
from slipstream.verifier.programs import End, Program, Programs
from slipstream.verifier.reward import Answer
from slipstream.verifier.scorer import Scorer

PROGRAM_ENDS: dict[End, pb.ProgramEnd] = {
    "finished": pb.PROGRAM_END_FINISHED,
    "raised": pb.PROGRAM_END_RAISED,
    "exited": pb.PROGRAM_END_EXITED,
    "late": pb.PROGRAM_END_LATE,
    "output": pb.PROGRAM_END_OUTPUT,
    "disk": pb.PROGRAM_END_DISK,
    "threads": pb.PROGRAM_END_THREADS,
}


class VerifierServicer(verifier_pb2_grpc.VerifierServicer):
    """Serves the scorer and the sandbox over gRPC."""

    def __init__(self, scorer: Scorer, programs: Programs) -> None:
        self._scorer = scorer
        self._programs = programs

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

    async def RunProgram(self, request: pb.RunProgramRequest, context: Any) -> pb.RunProgramResponse:
        """Run a program of the policy. Errors: InvalidRequest, Busy, Unreachable."""
        result = await self._programs.run(
            Program(
                code=request.code,
                earlier=tuple(request.earlier),
                seconds=request.seconds,
                memory_mib=request.memory_mib,
                group=request.group,
            )
        )
        return pb.RunProgramResponse(
            output=result.output,
            end=PROGRAM_ENDS[result.end],
            digests=result.digests,
            seconds=result.seconds,
        )
