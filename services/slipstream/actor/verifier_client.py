"""Scores completions through the verifier, with retries; completions without a score are withheld."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import grpc

from slipstream.config.rewards import RewardConfig
from slipstream.config.sections.pods import VerifierConfig
from slipstream.records import Completion, Outcome, Prompt, Reward
from slipstream.rpc import codec, errors
from slipstream.rpc.channel import call_with_retries
from slipstream.v1 import verifier_pb2
from slipstream.v1.verifier_pb2_grpc import VerifierStub

WITHHELD = "verifier"


class Scorer(Protocol):
    """Adds reward vectors to completions."""

    async def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Completion]:
        """Return the completions with their reward vectors, in order; those without a score are withheld."""


class VerifierClient:
    """Retries answers whose score is an error. Those that still fail are withheld, and never rewarded with 0.

    Invariant: a reward that compares the answers of a group sees the whole group, also when only some of the
    answers are retried. The cache of the verifier keeps that cheap.
    """

    def __init__(
        self, channel: grpc.aio.Channel, config: VerifierConfig, *, rewards: Sequence[RewardConfig]
    ) -> None:
        """`rewards`: those of the run, also the ones that the actor computes."""
        self._stub = VerifierStub(channel)
        self._timeout = config.timeout_seconds
        self._tries = config.retries + 1
        self._rewards = rewards

    async def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Completion]:
        """Return the completions with their reward vectors, all withheld if the verifier refuses the prompt.

        They are returned as they are if actors compute all rewards of the source of the prompt.

        Errors: grpc.aio.AioRpcError for a status that no later call will change.
        """
        scored = list(completions)
        applying = [reward for reward in self._rewards if reward.applies_to(prompt.source)]
        if not any(reward.facts.by_verifier for reward in applying):
            return scored
        whole_groups = any(reward.sees_group() for reward in applying)
        for attempt in range(self._tries):
            unscored = [index for index, c in enumerate(scored) if not c.rewards or c.withheld]
            if not unscored:
                break
            if attempt:
                await asyncio.sleep(0.1 * 2**attempt)
            try:
                vectors = await self._vectors(prompt, scored, unscored, whole_groups=whole_groups)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                    raise
                return [replace(c, rewards=_withheld(error.details() or "")) for c in scored]
            for index, rewards in zip(unscored, vectors, strict=True):
                scored[index] = replace(scored[index], rewards=rewards)
        return scored

    async def _vectors(
        self,
        prompt: Prompt,
        completions: Sequence[Completion],
        indices: Sequence[int],
        *,
        whole_groups: bool,
    ) -> list[tuple[Reward, ...]]:
        """Return the reward vectors of the completions at `indices` of a group."""
        if not whole_groups:
            return await self._try(prompt, [completions[index] for index in indices])
        vectors = await self._try(prompt, completions)
        return [vectors[index] for index in indices]

    async def _try(self, prompt: Prompt, completions: Sequence[Completion]) -> list[tuple[Reward, ...]]:
        request = verifier_pb2.ScoreRequest(
            prompt=codec.prompt_to_proto(prompt),
            answers=[
                verifier_pb2.Answer(
                    text=c.text, tokens=c.tokens, finish_reason=codec.FINISH_REASONS[c.finish_reason]
                )
                for c in completions
            ],
        )
        try:
            response = await call_with_retries(
                "score",
                lambda: self._stub.Score(request, timeout=self._timeout),
                give_up_after=self._timeout,
            )
        except errors.Unreachable as error:
            return [_withheld(str(error)) for _ in completions]
        return [tuple(codec.reward_from_proto(r) for r in vector.rewards) for vector in response.vectors]


def _withheld(detail: str) -> tuple[Reward, ...]:
    return (Reward(name=WITHHELD, value=0.0, outcome=Outcome.ERROR, detail=detail),)
