"""The gRPC service Teacher: one call returns the logprobs of all completions of one prompt."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slipstream.rpc import codec
from slipstream.rpc.errors import InvalidRequest, SlipstreamError
from slipstream.teacher.model import Passage
from slipstream.teacher.queue import ReadingQueue
from slipstream.v1 import teacher_pb2 as pb
from slipstream.v1 import teacher_pb2_grpc


class TeacherFailed(SlipstreamError):
    """The model failed on tokens that passed the checks."""


class TeacherServicer(teacher_pb2_grpc.TeacherServicer):
    """Checks requests, and passes them to the queue."""

    def __init__(
        self,
        queue: ReadingQueue,
        *,
        directory: Path,
        fingerprint: str,
        vocabulary: str,
        vocabulary_size: int,
        context: int | None,
    ) -> None:
        """`fingerprint`: of the weights; `vocabulary`: digest of the vocabulary; `context`: the longest
        sequence that the model reads, in tokens, None if unknown."""
        self._queue = queue
        self._directory = directory
        self._fingerprint = fingerprint
        self._vocabulary = vocabulary
        self._vocabulary_size = vocabulary_size
        self._context = context

    async def ReadTokens(self, request: pb.ReadTokensRequest, context: Any) -> pb.ReadTokensResponse:
        """Return the logprobs of every completion. Errors: InvalidRequest, Busy, TeacherFailed."""
        passages = self._passages(request)
        try:
            logprobs = await self._queue.read(passages)
        except (ValueError, RuntimeError) as error:
            raise TeacherFailed(f"{self._directory}: {type(error).__name__}: {error}") from error
        return pb.ReadTokensResponse(
            completions=map(codec.teacher_logprobs_to_proto, logprobs), fingerprint=self._fingerprint
        )

    def _passages(self, request: pb.ReadTokensRequest) -> list[Passage]:
        if request.vocabulary != self._vocabulary:
            raise InvalidRequest(
                f"the teacher {self._directory} has another vocabulary than the policy: the same token ids "
                "mean other tokens; set teacher.path to a model with the tokenizer of the policy"
            )
        limit = min(request.vocabulary_size, self._vocabulary_size)
        if not (math.isfinite(request.temperature) and request.temperature > 0):
            raise InvalidRequest(f"temperature: got {request.temperature:g}, needs a number above 0")
        if not 0 <= request.top_k <= limit:
            raise InvalidRequest(
                f"top_k: got {request.top_k}, and the vocabulary has {limit} tokens; "
                "lower algorithm.distillation.top_k"
            )
        if not request.prompt_token_ids:
            raise InvalidRequest(
                "prompt_token_ids: got none; at least one is needed to predict the first token"
            )
        self._check_ids("prompt_token_ids", request.prompt_token_ids)
        return [
            self._passage(request, number, list(completion.token_ids))
            for number, completion in enumerate(request.completions)
        ]

    def _passage(self, request: pb.ReadTokensRequest, number: int, token_ids: Sequence[int]) -> Passage:
        self._check_ids(f"completions[{number}]", token_ids)
        passage = Passage(
            prompt_token_ids=list(request.prompt_token_ids),
            token_ids=token_ids,
            temperature=request.temperature,
            top_k=request.top_k,
            vocabulary_size=min(request.vocabulary_size, self._vocabulary_size),
        )
        if self._context is not None and passage.length > self._context:
            raise InvalidRequest(
                f"completions[{number}]: {passage.length} tokens with its prompt, and the teacher "
                f"{self._directory} reads at most {self._context}; lower rollout.max_new_tokens"
            )
        return passage

    def _check_ids(self, name: str, token_ids: Sequence[int]) -> None:
        largest = max(token_ids, default=0)
        if largest >= self._vocabulary_size:
            raise InvalidRequest(
                f"{name}: token id {largest}, and the teacher {self._directory} has {self._vocabulary_size}"
            )
