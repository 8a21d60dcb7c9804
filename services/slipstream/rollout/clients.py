"""What a rollout asks of replay and of the verifier."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar
from uuid import uuid4

import grpc

from slipstream.config import RunConfig
from slipstream.records import Completion, Group, InsertOutcome, Lease, Outcome, Prompt, Reward
from slipstream.rpc import codec
from slipstream.rpc.channel import ask_again, call_again
from slipstream.rpc.errors import Unreachable
from slipstream.v1 import replay_pb2, verifier_pb2
from slipstream.v1.replay_pb2_grpc import ReplayStub
from slipstream.v1.verifier_pb2_grpc import VerifierStub

T = TypeVar("T")
WITHHELD = "verifier"


LeaseName = tuple[str, int]
"""Group id and epoch of a lease."""
PATIENCE_SECONDS = 120.0
"""How long a finished group is offered to a replay that is away."""


class ReplayClient:
    """Leases, heartbeats, returns and inserts. Every call is idempotent, and made again after a lost answer.

    Errors of every method: Unreachable when no attempt was answered; any other AioRpcError at once.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        config: RunConfig,
        *,
        worker_id: str,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._stub = ReplayStub(channel)
        self._answer_seconds = config.rpc.answer_seconds
        self._timeout = config.rpc.timeout_seconds
        self._patience = patience_seconds
        self._worker_id = worker_id
        self._request_id = ""
        self._attempts = 0

    async def lease(self, *, max_prompts: int, wait_seconds: float, serving_version: int) -> list[Lease]:
        """Up to `max_prompts` leases; none when nothing is admitted within `wait_seconds`.

        What an earlier call was given, whose answer never came, is given again. One call at a time.
        """
        self._request_id = self._request_id or uuid4().hex

        def ask(seconds: float) -> Awaitable[replay_pb2.LeasePromptsResponse]:
            self._attempts += 1
            request = replay_pb2.LeasePromptsRequest(
                worker_id=self._worker_id,
                max_prompts=max_prompts,
                wait_seconds=wait_seconds,
                serving_version=serving_version,
                request_id=self._request_id,
                attempt=self._attempts,
            )
            answer: Awaitable[replay_pb2.LeasePromptsResponse] = self._stub.LeasePrompts(
                request, timeout=wait_seconds + seconds
            )
            return answer

        response = await self._ask("lease", ask, give_up_after=self._timeout)
        self._request_id, self._attempts = "", 0
        return [codec.lease_from_proto(lease) for lease in response.leases]

    async def renew(
        self, leases: Sequence[Lease], *, serving_version: int, scoring_failure: str, give_up_after: float
    ) -> list[LeaseName]:
        """The heartbeat; returns those of the leases that are not ours any more."""
        request = replay_pb2.RenewLeasesRequest(
            worker_id=self._worker_id,
            leases=_refs(leases),
            serving_version=serving_version,
            scoring_failure=scoring_failure,
        )
        response = await self._ask(
            "heartbeat",
            lambda seconds: self._stub.RenewLeases(request, timeout=seconds),
            give_up_after=give_up_after,
        )
        return [(ref.group_id, ref.lease_epoch) for ref in response.lost]

    async def give_back(self, leases: Sequence[Lease], *, fault: str = "") -> int:
        """Return leases unworked; returns how many were still ours. A `fault` counts against the prompts.

        Takes rpc.timeout_seconds at most.
        """
        request = replay_pb2.ReturnPromptsRequest(
            worker_id=self._worker_id, leases=_refs(leases), fault=fault
        )
        response = await self._ask(
            f"return of {len(leases)} leases",
            lambda seconds: self._stub.ReturnPrompts(request, timeout=seconds),
            give_up_after=self._timeout / 2,
        )
        return int(response.returned)

    async def insert(self, group: Group) -> InsertOutcome:
        """Hand in a group."""
        request = replay_pb2.InsertGroupRequest(group=codec.group_to_proto(group).SerializeToString())
        response = await self._ask(
            f"insert of {group.group_id}",
            lambda seconds: self._stub.InsertGroup(request, timeout=seconds),
            give_up_after=self._patience,
        )
        return codec.insert_outcome_from_proto(response.outcome)

    async def _ask(self, what: str, ask: Callable[[float], Awaitable[T]], *, give_up_after: float) -> T:
        return await ask_again(
            what,
            ask,
            answer_seconds=min(self._answer_seconds, give_up_after / 2),
            longest_seconds=min(self._timeout, give_up_after / 2),
            give_up_after=give_up_after,
        )


class VerifierClient:
    """Scores; an error is tried again, and what still has none is marked as withheld, never as 0.

    Invariant: a reward that looks at the group sees all of it, also when only some answers are tried again;
    the verifier remembers what was costly.
    """

    def __init__(self, channel: grpc.aio.Channel, config: RunConfig) -> None:
        self._stub = VerifierStub(channel)
        self._timeout = config.verifier.timeout_seconds
        self._tries = config.verifier.retries + 1
        self._whole_groups = any(reward.sees_group() for reward in config.rewards)

    async def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Completion]:
        """The completions with their reward vectors; all are withheld when no answer to it can be judged.

        Errors: grpc.aio.AioRpcError for a status that no later call will change.
        """
        scored = list(completions)
        for attempt in range(self._tries):
            open_places = [index for index, c in enumerate(scored) if not c.rewards or c.withheld]
            if not open_places:
                break
            if attempt:
                await asyncio.sleep(0.1 * 2**attempt)
            try:
                vectors = await self._vectors(prompt, scored, open_places)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                    raise
                return [replace(c, rewards=_withheld(error.details() or "")) for c in scored]
            for index, rewards in zip(open_places, vectors, strict=True):
                scored[index] = replace(scored[index], rewards=rewards)
        return scored

    async def _vectors(
        self, prompt: Prompt, completions: Sequence[Completion], places: Sequence[int]
    ) -> list[tuple[Reward, ...]]:
        """The vectors of some completions of a group."""
        if not self._whole_groups:
            return await self._try(prompt, [completions[place] for place in places])
        vectors = await self._try(prompt, completions)
        return [vectors[place] for place in places]

    async def _try(self, prompt: Prompt, completions: Sequence[Completion]) -> list[tuple[Reward, ...]]:
        request = verifier_pb2.ScoreRequest(
            prompt=codec.prompt_to_proto(prompt),
            answers=[
                verifier_pb2.Answer(
                    text=c.text, tokens=len(c.token_ids), finish_reason=codec.FINISH_REASONS[c.finish_reason]
                )
                for c in completions
            ],
        )
        try:
            response = await call_again(
                "score",
                lambda: self._stub.Score(request, timeout=self._timeout),
                give_up_after=self._timeout,
            )
        except Unreachable as error:
            return [_withheld(str(error)) for _ in completions]
        return [tuple(codec.reward_from_proto(r) for r in vector.rewards) for vector in response.vectors]


def _withheld(detail: str) -> tuple[Reward, ...]:
    return (Reward(name=WITHHELD, value=0.0, outcome=Outcome.ERROR, detail=detail),)


def _refs(leases: Sequence[Lease]) -> list[replay_pb2.LeaseRef]:
    return [replay_pb2.LeaseRef(group_id=x.group_id, lease_epoch=x.lease_epoch) for x in leases]
