"""The learner's client of the teacher: logprobs of the tokens of a batch, one call for each prompt."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc

from slipstream.algorithms.spec import Distillation
from slipstream.config import RunConfig
from slipstream.parallel import all_of
from slipstream.records import Group, Segment, TeacherLogprobs
from slipstream.rpc import codec, errors, group_checks, vocabulary
from slipstream.rpc.channel import call_with_growing_deadline, open_channel
from slipstream.telemetry.logs import Log
from slipstream.v1 import teacher_pb2 as pb
from slipstream.v1.teacher_pb2_grpc import TeacherStub


class UnfitTeacher(errors.SlipstreamError):
    """The teacher refused the tokens and would refuse them again, or its weights have changed."""


@asynccontextmanager
async def open_teacher_client(config: RunConfig, *, log: Log) -> "AsyncIterator[TeacherClient | None]":
    """Open the client of the teacher until the context ends; None for a run that does not distill.

    Errors: ValueError for a policy whose vocabulary cannot be read.
    """
    distillation = config.algorithm.resolved_distillation()
    if distillation is None:
        yield None
        return
    async with open_channel(config.teacher.address, config.rpc, log=log) as channel:
        yield TeacherClient(channel, config, distillation, log=log)


class TeacherClient:
    """Gets the logprobs of batches from the teacher pods.

    Every call is idempotent, and repeated while no pod answers. Invariant: at most `teacher.requests` calls
    run at a time, so that the teachers' queues stay short and answers come in time. All answers are from
    weights with the fingerprint of the first answer.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        config: RunConfig,
        distillation: Distillation,
        *,
        log: Log | None = None,
    ) -> None:
        """Errors: ValueError for a policy whose vocabulary cannot be read."""
        directory = config.model.directory()
        self._stub = TeacherStub(channel)
        self._config = config.teacher
        self._temperature = config.rollout.temperature
        self._longest = config.learner.max_tokens_per_row
        self._top_k = distillation.resolved_top_k
        self._vocabulary = vocabulary.vocabulary_of(directory)
        self._vocabulary_size = group_checks.vocabulary_size(directory) or group_checks.LARGEST_TOKEN_ID
        self._free = asyncio.Semaphore(config.teacher.requests)
        self._log = log
        self._fingerprint: str | None = None
        """Fingerprint of the weights that gave the first answer; None before it."""

    async def teach(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups with the teacher's logprobs in every segment that may train.

        Errors: Unreachable when no teacher answers for `teacher.patience_seconds`; UnfitTeacher.
        """
        return await all_of(self._teach(group) for group in groups)

    async def _teach(self, group: Group) -> Group:
        by_prompt: dict[tuple[int, ...], list[Segment]] = {}
        for segment in group.may_train:
            prompt = group.prompt_of(segment)
            if len(prompt) + len(segment.token_ids) <= self._longest:
                by_prompt.setdefault(prompt, []).append(segment)
        most = len(group.completions)  # slipstream validate computes the longest message of so many
        taught = await all_of(
            self._teach_prompt(group, prompt, each[start : start + most])
            for prompt, each in by_prompt.items()
            for start in range(0, len(each), most)
        )
        of_segment = {id(segment): each for pairs in taught for segment, each in pairs}
        completions = [
            completion.with_segments(
                [replace(each, teacher=of_segment.get(id(each))) for each in completion.segments]
            )
            for completion in group.completions
        ]
        return replace(group, completions=tuple(completions))

    async def _teach_prompt(
        self, group: Group, prompt_token_ids: tuple[int, ...], segments: Sequence[Segment]
    ) -> list[tuple[Segment, TeacherLogprobs]]:
        """Return the segments of a group after one prompt, each with its logprobs."""
        async with self._free:
            logprobs = await self._read(group, prompt_token_ids, segments)
        return list(zip(segments, logprobs, strict=True))

    async def _read(
        self, group: Group, prompt_token_ids: tuple[int, ...], segments: Sequence[Segment]
    ) -> list[TeacherLogprobs]:
        request = pb.ReadTokensRequest(
            vocabulary=self._vocabulary,
            vocabulary_size=self._vocabulary_size,
            temperature=self._temperature,
            top_k=self._top_k,
            prompt_token_ids=prompt_token_ids,
            completions=[pb.TokenSequence(token_ids=segment.token_ids) for segment in segments],
        )

        def ask(seconds: float) -> Awaitable[pb.ReadTokensResponse]:
            answer: Awaitable[pb.ReadTokensResponse] = self._stub.ReadTokens(request, timeout=seconds)
            return answer

        try:
            response = await call_with_growing_deadline(
                "teacher",
                ask,
                answer_seconds=self._config.answer_seconds,
                longest_seconds=self._config.timeout_seconds,
                give_up_after=self._config.patience_seconds,
            )
        except errors.MessageTooLarge as error:
            lower = " or algorithm.distillation.top_k" if self._top_k else ""
            raise UnfitTeacher(f"group {group.group_id}: {error}{lower}") from error
        except errors.Unreachable as error:
            raise errors.Unreachable(
                f"{error}; see the log of the teacher (logs/teacher.log in the folder of the run), check "
                f"teacher.address ({self._config.address}), and raise teacher.patience_seconds "
                f"({self._config.patience_seconds:g}) where the teacher takes longer to come back"
            ) from error
        except grpc.aio.AioRpcError as error:
            raise UnfitTeacher(f"group {group.group_id}: {error.details()}") from error
        self._check_weights(response.fingerprint)
        return self._checked(response, segments)

    def _check_weights(self, fingerprint: str) -> None:
        """Check that the answer is from the weights of the first answer. Errors: UnfitTeacher."""
        if self._fingerprint is None:
            self._fingerprint = fingerprint
            if self._log is not None:
                self._log.info("the teacher answers", fingerprint=fingerprint)
        if fingerprint != self._fingerprint:
            raise UnfitTeacher(
                f"teacher.address ({self._config.address}) answers from different weights, with the "
                f"fingerprint {self._fingerprint or 'none'} first and {fingerprint or 'none'} now: give all "
                "teacher pods the same weights (each logs its fingerprint when it has loaded them); after a "
                "deliberate change of the teacher, restart the learner once all pods have the new one"
            )

    def _checked(self, response: pb.ReadTokensResponse, segments: Sequence[Segment]) -> list[TeacherLogprobs]:
        """Return the logprobs of an answer. Errors: UnfitTeacher if they do not fit the request."""
        try:
            logprobs = [codec.teacher_logprobs_from_proto(message) for message in response.completions]
        except ValueError as error:
            raise UnfitTeacher(f"the teacher's answer cannot be read: {error}") from error
        sizes = [(teacher.tokens, teacher.top_k) for teacher in logprobs]
        wanted = [(len(segment.token_ids), self._top_k) for segment in segments]
        if sizes != wanted:
            raise UnfitTeacher(
                f"the teacher answered with (tokens, top_k) {sizes}, and was asked about {wanted}"
            )
        return logprobs
