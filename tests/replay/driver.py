"""A driver of a real replay service, over gRPC and with a real Redis; prompts and groups are generated."""

import asyncio
import contextlib
import io
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import grpc
from slipstream.algorithms.spec import Shaping
from slipstream.config import RunConfig, parse_config
from slipstream.prompts import PromptSource
from slipstream.records import Completion, FinishReason, Group, Ledger, Outcome, Prompt, Reward, VersionSpan
from slipstream.replay.__main__ import connected, limits_of
from slipstream.replay.connection import Scripts
from slipstream.replay.curriculum import Curriculum
from slipstream.replay.evaluations import EvaluationStore
from slipstream.replay.servicer import Collaborators, ReplayServicer
from slipstream.replay.store import ReplayStore
from slipstream.replay.values import LeaseRequest
from slipstream.rpc import codec, replay_codec
from slipstream.rpc.channel import open_channel
from slipstream.rpc.server import start_server
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.v1 import replay_pb2 as pb
from slipstream.v1 import types_pb2
from slipstream.v1.packed_pb2 import PackedGroup
from slipstream.v1.replay_pb2_grpc import ReplayStub, add_ReplayServicer_to_server

ACCEPTED = pb.INSERT_OUTCOME_ACCEPTED
DUPLICATE = pb.INSERT_OUTCOME_DUPLICATE
FENCED = pb.INSERT_OUTCOME_FENCED
FILTERED = pb.INSERT_OUTCOME_FILTERED


class MadeUpPrompts:
    """A source of prompts: number 7 is «training 7», and the numbers repeat after `distinct` prompts."""

    def __init__(self, distinct: int | None = None) -> None:
        self._distinct = distinct

    @property
    def held_out_size(self) -> int | None:
        return 10

    def training(self, index: int) -> Prompt:
        index = index if self._distinct is None else index % self._distinct
        return Prompt(
            prompt_id=f"training-{index}", task="made up", answer=str(index), text=f"training {index}"
        )

    def held_out(self, index: int) -> Prompt:
        return Prompt(
            prompt_id=f"held-out-{index}", task="made up", answer=str(index), text=f"held out {index}"
        )

    def demonstration(self, index: int) -> tuple[Prompt, str]:
        return self.training(index), str(index)


def completion(*, version: int = 0, tokens: int = 3, reward: float | None = 1.0) -> Completion:
    """Return a completion that one version sampled; a reward of None means that scoring it failed."""
    outcome = Outcome.SCORE if reward is not None else Outcome.ERROR
    return Completion(
        token_ids=tuple(range(tokens)),
        logprobs=(-0.5,) * tokens,
        mask=(1,) * tokens,
        spans=(VersionSpan(version=version, start=0, end=tokens),),
        finish_reason=FinishReason.STOP,
        rewards=(Reward(name="exact_match", value=reward or 0.0, outcome=outcome),),
    )


def group(lease: pb.Lease, completions: Sequence[Completion]) -> Group:
    """Return a finished group for a lease."""
    return Group(
        group_id=lease.group_id,
        lease_epoch=lease.lease_epoch,
        dispatch_index=lease.dispatch_index,
        prompt=codec.prompt_from_proto(lease.prompt),
        prompt_token_ids=(1, 2),
        completions=tuple(completions),
        worker_id="w",
    )


def packed(finished: Group) -> PackedGroup:
    """Return a group as replay parses it."""
    return PackedGroup.FromString(codec.group_to_proto(finished).SerializeToString())


@dataclass(slots=True, kw_only=True)
class Learner:
    """The state of a learner: its epoch, and for each group the last hand-out that gave it."""

    epoch: int = 0
    number: int = 0
    hand_outs: dict[str, pb.HandOut] = field(default_factory=dict)

    def next_hand_out(self) -> pb.HandOut:
        self.number += 1
        return pb.HandOut(learner_epoch=self.epoch, number=self.number)

    def hand_out_of(self, batch: Sequence[types_pb2.Group]) -> pb.HandOut:
        """Return the hand-out that gave the batch; for an empty batch the first."""
        first = pb.HandOut(learner_epoch=self.epoch, number=1)
        return self.hand_outs.get(batch[0].group_id, first) if batch else first


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Short forms of the service's methods. The equations of the ledger must hold after each test."""

    stub: Any
    store: ReplayStore
    scripts: Scripts
    config: RunConfig
    metrics: Metrics
    log: Log
    address: str
    learner: Learner = field(default_factory=Learner)

    async def lease(
        self, prompts: int = 1, *, worker: str = "w", wait: float = 0.0, serving: int = 0
    ) -> list[pb.Lease]:
        request = pb.LeasePromptsRequest(
            worker_id=worker, max_prompts=prompts, wait_seconds=wait, serving_version=serving
        )
        return list((await self.stub.LeasePrompts(request)).leases)

    async def ask_again(self, prompts: int, *, attempt: int, request: str = "r") -> list[pb.Lease]:
        """Make one attempt at a request for leases with a request id."""
        message = pb.LeasePromptsRequest(
            worker_id="w", max_prompts=prompts, request_id=request, attempt=attempt, serving_version=0
        )
        return list((await self.stub.LeasePrompts(message)).leases)

    async def renew(
        self,
        *leases: pb.Lease,
        worker: str = "w",
        serving: int = 0,
        failure: str = "",
        throughput: float | None = None,
    ) -> list[str]:
        """Send a heartbeat of a worker with these leases. Returns the groups of the lost leases."""
        message = pb.RenewLeasesRequest(
            worker_id=worker,
            leases=refs(leases),
            serving_version=serving,
            scoring_failure=failure,
            throughput=throughput,
        )
        return [ref.group_id for ref in (await self.stub.RenewLeases(message)).lost]

    async def activity(self) -> pb.GetActivityResponse:
        response: pb.GetActivityResponse = await self.stub.GetActivity(pb.GetActivityRequest())
        return response

    async def return_leases(
        self, *leases: pb.Lease, worker: str = "w", fault: str = "", engines_lost: int = 0
    ) -> int:
        request = pb.ReturnPromptsRequest(
            worker_id=worker, leases=refs(leases), fault=fault, engines_lost=engines_lost
        )
        return int((await self.stub.ReturnPrompts(request)).returned)

    async def insert(self, lease: pb.Lease, *, version: int = 0, reward: float | None = 1.0) -> int:
        """Insert `group_size` equal completions, and return the outcome."""
        answers = [completion(version=version, reward=reward)] * lease.group_size
        return await self.insert_completions(lease, answers)

    async def insert_rewards(self, lease: pb.Lease, *rewards: float | None) -> int:
        """Insert one completion for each reward, and return the outcome."""
        return await self.insert_completions(lease, [completion(reward=reward) for reward in rewards])

    async def insert_completions(self, lease: pb.Lease, answers: Sequence[Completion]) -> int:
        return int((await self.insert_message(codec.group_to_proto(group(lease, answers)))).outcome)

    async def insert_message(self, message: types_pb2.Group) -> pb.InsertGroupResponse:
        response: pb.InsertGroupResponse = await self.stub.InsertGroup(
            pb.InsertGroupRequest(group=message.SerializeToString())
        )
        return response

    async def make(self, groups: int, *, version: int = 0) -> list[pb.Lease]:
        """Lease and insert this many groups."""
        leases = await self.lease(groups)
        assert len(leases) == groups
        for lease in leases:
            assert await self.insert(lease, version=version) == ACCEPTED
        return leases

    async def sample(
        self,
        groups: int,
        *,
        version: int = 0,
        max_staleness: int = 8,
        wait: float = 0.0,
        hand_out: pb.HandOut | None = None,
    ) -> list[types_pb2.Group]:
        hand_out = hand_out or self.learner.next_hand_out()
        request = pb.SampleBatchRequest(
            groups=groups,
            version=version,
            max_staleness=max_staleness,
            wait_seconds=wait,
            hand_out=hand_out,
        )
        call = self.stub.SampleBatch(request)
        batch = [types_pb2.Group.FromString(answer.group) async for answer in call if answer.group]
        self.learner.hand_outs.update({member.group_id: hand_out for member in batch})
        return batch

    async def ack(self, batch: Sequence[types_pb2.Group], *, version: int) -> int:
        return int((await self.acknowledge(batch, version=version)).acked)

    async def acknowledge(
        self, batch: Sequence[types_pb2.Group], *, version: int, hand_out: pb.HandOut | None = None
    ) -> pb.AckBatchResponse:
        """Acknowledge a batch, by default under its last hand-out, and return the response."""
        ids = [member.group_id for member in batch]
        hand_out = hand_out or self.learner.hand_out_of(batch)
        request = pb.AckBatchRequest(group_ids=ids, version=version, hand_out=hand_out)
        response: pb.AckBatchResponse = await self.stub.AckBatch(request)
        return response

    async def release(self, batch: Sequence[types_pb2.Group], *, hand_out: pb.HandOut | None = None) -> int:
        ids = [member.group_id for member in batch]
        hand_out = hand_out or self.learner.hand_out_of(batch)
        request = pb.ReleaseBatchRequest(group_ids=ids, hand_out=hand_out)
        return int((await self.stub.ReleaseBatch(request)).released)

    async def train(self, groups: int, *, version: int) -> list[types_pb2.Group]:
        """Sample a batch, and acknowledge it as the step that made `version`."""
        batch = await self.sample(groups, version=version - 1)
        assert await self.ack(batch, version=version) == groups
        return batch

    async def announce(self, version: int) -> None:
        request = pb.AnnounceVersionRequest(version=version, learner_epoch=self.learner.epoch)
        await self.stub.AnnounceVersion(request)

    async def attach(
        self, version: int, cursor: pb.Cursor | None = None, *, learner_id: str | None = None
    ) -> tuple[int, int]:
        """Attach a learner, by default a new one. From now on this driver is that learner."""
        request = pb.AttachLearnerRequest(
            version=version, cursor=cursor, learner_id=learner_id or secrets.token_hex(6)
        )
        reply = await self.stub.AttachLearner(request)
        if reply.learner_epoch != self.learner.epoch:
            self.learner.epoch, self.learner.number = reply.learner_epoch, 0
        return reply.released, reply.restored

    async def confirm(self, version: int) -> int:
        request = pb.ConfirmCheckpointRequest(version=version, learner_epoch=self.learner.epoch)
        return int((await self.stub.ConfirmCheckpoint(request)).freed)

    async def start_evaluation(
        self, *, version: int = 0, prompts: int = 2, samples: int = 2, request_id: str | None = None
    ) -> str:
        request = pb.StartEvaluationRequest(
            version=version,
            prompts=prompts,
            samples_per_prompt=samples,
            reward="exact_match",
            learner_epoch=self.learner.epoch,
            request_id=request_id or secrets.token_hex(6),
        )
        return str((await self.stub.StartEvaluation(request)).evaluation_id)

    async def evaluation(self, evaluation_id: str) -> pb.GetEvaluationResponse:
        request = pb.GetEvaluationRequest(evaluation_id=evaluation_id)
        response: pb.GetEvaluationResponse = await self.stub.GetEvaluation(request)
        return response

    async def stats(self) -> pb.GetStatsResponse:
        response: pb.GetStatsResponse = await self.stub.GetStats(pb.GetStatsRequest())
        return response

    async def set_admission(
        self, *, paused: bool, by: str = "anna", reason: str = "maintenance"
    ) -> pb.SetAdmissionResponse:
        request = pb.SetAdmissionRequest(paused=paused, by=by, reason=reason)
        response: pb.SetAdmissionResponse = await self.stub.SetAdmission(request)
        return response

    async def ledger(self) -> Ledger:
        return replay_codec.ledger_from_proto((await self.stats()).ledger)

    async def stored_bytes(self, group_id: str) -> bytes | None:
        (content,) = await self.scripts.read_fields([f"group:{group_id}"], "bytes")
        return content


def refs(leases: Sequence[pb.Lease]) -> list[pb.LeaseRef]:
    """Return references to leases."""
    return [pb.LeaseRef(group_id=lease.group_id, lease_epoch=lease.lease_epoch) for lease in leases]


def asking(prompts: int, *, serving: int = 0) -> LeaseRequest:
    """Return a lease request of the worker `w`, for the store."""
    return LeaseRequest(worker="w", max_prompts=prompts, serving_version=serving)


def run_config(
    *,
    depth: int = 2,
    per_step: int = 4,
    group_size: int = 2,
    lease_seconds: float = 60.0,
    name: str | None = None,
    **sections: Any,
) -> RunConfig:
    """Return the configuration of a run with keys of its own, small enough to count by hand."""
    return parse_config(
        {
            "name": name or f"test-{secrets.token_hex(6)}",
            "staleness": {"pipeline_depth": depth},
            "learner": {"groups_per_step": per_step},
            "rollout": {"group_size": group_size},
            "replay": {"lease_seconds": lease_seconds},
            **sections,
        }
    )


@contextlib.asynccontextmanager
async def serving(
    redis_url: str,
    config: RunConfig,
    *,
    shaping: Shaping | None = None,
    distinct: int | None = None,
    source: PromptSource | None = None,
) -> AsyncIterator[Driver]:
    """Start a replay service on port 0, and yield a driver for it. `source`: None for made-up prompts."""
    stop, metrics, prompts = asyncio.Event(), Metrics(), source or MadeUpPrompts(distinct)
    log = Log(pod="replay", level="debug", stream=io.StringIO())
    async with connected(redis_url, config) as scripts:
        limits = replace(limits_of(config), shaping=shaping or Shaping())
        store = ReplayStore(scripts, limits)
        servicer = ReplayServicer(
            Collaborators(
                config=config,
                store=store,
                curriculum=Curriculum(scripts, store, prompts, shaping=limits.shaping, seed=config.seed),
                evaluations=EvaluationStore(scripts),
                prompts=prompts,
                metrics=metrics,
                log=log,
                stop=stop,
            )
        )
        register = partial(add_ReplayServicer_to_server, servicer)
        server = await start_server("127.0.0.1:0", register, config=config.rpc)
        await server.set_serving(True)
        async with open_channel(server.address, config.rpc) as channel:
            yield Driver(
                stub=stub_of(channel),
                store=store,
                scripts=scripts,
                config=config,
                metrics=metrics,
                log=log,
                address=server.address,
            )
        stop.set()
        await server.stop(grace=1.0)


def scenario(
    *, shaping: Shaping | None = None, distinct: int | None = None, **settings: Any
) -> Callable[[Callable[[Driver], Awaitable[None]]], Callable[[str], None]]:
    """Run an async test with its own service; at the end the equations of the ledger must hold."""

    def wrap(test: Callable[[Driver], Awaitable[None]]) -> Callable[[str], None]:
        def run(redis_url: str) -> None:
            service = serving(redis_url, run_config(**settings), shaping=shaping, distinct=distinct)
            asyncio.run(asyncio.wait_for(_play(test, service), 60))

        run.__name__ = getattr(test, "__name__", "scenario")
        return run

    return wrap


async def _play(
    test: Callable[[Driver], Awaitable[None]], service: contextlib.AbstractAsyncContextManager[Driver]
) -> None:
    async with service as driver:
        await test(driver)
        stats = await driver.stats()
        assert stats.residual == 0, stats


def stub_of(channel: grpc.aio.Channel) -> Any:
    """Return the generated client, which has no types."""
    return ReplayStub(channel)  # type: ignore[no-untyped-call, unused-ignore]


async def until(condition: Callable[[], bool | Awaitable[bool]], *, seconds: float = 10.0) -> None:
    """Wait until a condition becomes true."""
    async with asyncio.timeout(seconds):
        while True:
            value = condition()
            if value if isinstance(value, bool) else await value:
                return
            await asyncio.sleep(0.005)


async def failure(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    """Return the gRPC error with which a call has to end."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError(f"expected an error, got {answer}")
