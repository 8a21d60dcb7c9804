"""Calls of an actor to replay: the rollouts, leases, heartbeats, returned leases and inserted groups."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import uuid4

import grpc

from slipstream.config.sections.services import RpcConfig
from slipstream.records import Group, InsertOutcome, Lease, ListedRollout
from slipstream.rpc import codec, replay_codec
from slipstream.rpc.channel import call_with_growing_deadline
from slipstream.v1 import replay_pb2
from slipstream.v1.replay_pb2_grpc import ReplayStub

T = TypeVar("T")
LeaseName = tuple[str, int]
"""Group id and epoch of a lease."""
PATIENCE_SECONDS = 120.0
"""How long the insert of a finished group is retried while replay does not answer."""
FAILED_INSERTS = 4
"""Inserts of one group that may fail in replay. Then the group is taken to be the cause."""
FAILED_INSERT_SECONDS = 0.25
"""Pause after an insert that failed in replay; it is doubled after each."""
FAILED = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
"""Status of a call that raised an error in replay, or whose connection broke in a way that gRPC has no name
for."""


class ReplayClient:
    """Leases, heartbeats, returns and inserts. Every call is idempotent, and retried after a lost answer.

    Errors of every method: Unreachable when no attempt was answered; any other AioRpcError at once, except
    as in `insert`.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        config: RpcConfig,
        *,
        worker_id: str,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._stub = ReplayStub(channel)
        self._answer_seconds = config.answer_seconds
        self._timeout = config.timeout_seconds
        self._patience = patience_seconds
        self._worker_id = worker_id
        self._request_id = ""
        self._attempts = 0

    async def lease(self, *, max_prompts: int, wait_seconds: float, serving_version: int) -> list[Lease]:
        """Return up to `max_prompts` leases; none when replay admits none within `wait_seconds`.

        Leases that replay granted to an earlier call, whose answer was lost, are returned by the next call.
        Only one call may run at a time.
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
        return [replay_codec.lease_from_proto(lease) for lease in response.leases]

    async def rollouts(self) -> list[ListedRollout]:
        """Return the rollouts that take requests."""
        response = await self._ask(
            "list of rollouts",
            lambda seconds: self._stub.ListRollouts(replay_pb2.ListRolloutsRequest(), timeout=seconds),
            give_up_after=self._timeout,
        )
        return [replay_codec.listed_rollout_from_proto(each) for each in response.rollouts]

    async def renew(
        self,
        leases: Sequence[Lease],
        *,
        serving_version: int,
        scoring_failure: str,
        throughput: float | None,
        give_up_after: float,
    ) -> list[LeaseName]:
        """Renew leases; return the names of those that this actor has lost.

        `throughput`: completions per second; None while there is no rate yet.
        """
        request = replay_pb2.RenewLeasesRequest(
            worker_id=self._worker_id,
            leases=_refs(leases),
            serving_version=serving_version,
            scoring_failure=scoring_failure,
            throughput=throughput,
        )
        response = await self._ask(
            "heartbeat",
            lambda seconds: self._stub.RenewLeases(request, timeout=seconds),
            give_up_after=give_up_after,
        )
        return [(ref.group_id, ref.lease_epoch) for ref in response.lost]

    async def return_leases(self, leases: Sequence[Lease], *, fault: str = "", engines_lost: int = 0) -> int:
        """Return leases without a group; return how many of them this actor still held.

        A `fault` counts against the prompts, as often as they ended engines, and at least once. Takes
        rpc.timeout_seconds at most.
        """
        request = replay_pb2.ReturnPromptsRequest(
            worker_id=self._worker_id, leases=_refs(leases), fault=fault, engines_lost=engines_lost
        )
        response = await self._ask(
            f"return of {len(leases)} leases",
            lambda seconds: self._stub.ReturnPrompts(request, timeout=seconds),
            give_up_after=self._timeout / 2,
        )
        return int(response.returned)

    async def insert(self, group: Group) -> InsertOutcome:
        """Insert a group.

        An error inside of replay is no fault of the group at first: the insert is sent FAILED_INSERTS times.
        """
        request = replay_pb2.InsertGroupRequest(group=codec.group_to_proto(group).SerializeToString())
        failed = 0
        while True:
            try:
                response = await self._ask(
                    f"insert of {group.group_id}",
                    lambda seconds: self._stub.InsertGroup(request, timeout=seconds),
                    give_up_after=self._patience,
                )
            except grpc.aio.AioRpcError as error:
                failed += 1
                if error.code() not in FAILED or failed == FAILED_INSERTS:
                    raise
                await asyncio.sleep(FAILED_INSERT_SECONDS * 2 ** (failed - 1))
            else:
                return replay_codec.insert_outcome_from_proto(response.outcome)

    async def _ask(self, what: str, ask: Callable[[float], Awaitable[T]], *, give_up_after: float) -> T:
        return await call_with_growing_deadline(
            what,
            ask,
            answer_seconds=min(self._answer_seconds, give_up_after / 2),
            longest_seconds=min(self._timeout, give_up_after / 2),
            give_up_after=give_up_after,
        )


def _refs(leases: Sequence[Lease]) -> list[replay_pb2.LeaseRef]:
    return [replay_pb2.LeaseRef(group_id=x.group_id, lease_epoch=x.lease_epoch) for x in leases]
