"""The checks of `slipstream probe`: real gRPC calls to running services, within one deadline.

    circle:  replay ── lease ──▶ made-up answer ──▶ verifier ── scores ──▶ return of the lease ──▶ ledger

The next actor gets the prompt that the circle leased and returned. The probe inserts nothing, so no answer
of a probe is trained on.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slipstream.config import RunConfig
from slipstream.records import Lease, Ledger, Outcome
from slipstream.rpc import codec, errors, replay_codec
from slipstream.rpc.channel import call_with_retries, open_channel
from slipstream.telemetry.logs import Log
from slipstream.v1 import learner_pb2, replay_pb2, types_pb2, verifier_pb2
from slipstream.v1.learner_pb2_grpc import FleetStub
from slipstream.v1.replay_pb2_grpc import ReplayStub
from slipstream.v1.verifier_pb2_grpc import VerifierStub

T = TypeVar("T")
CALL_SECONDS = 5.0
ADMISSION_SECONDS = 1.0
POLL_SECONDS = 0.2
NO_EVALUATION = -1
"""A policy version below all others: an actor without the version of an evaluation gets no lease of it."""


class CheckFailed(Exception):
    """A service gave a wrong answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The configuration with the addresses of services, and a deadline on the clock of the event loop."""

    config: RunConfig
    deadline: float

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline; at least 0."""
        return max(0.0, self.deadline - asyncio.get_running_loop().time())

    @asynccontextmanager
    async def channel(self, address: str) -> AsyncIterator[grpc.aio.Channel]:
        """Open a channel with the settings of the pods."""
        channel = open_channel(address, self.config.rpc, log=Log(pod="probe"))
        try:
            yield channel
        finally:
            await channel.close(None)

    async def ask(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to a call, which is retried until the deadline. Errors: Unreachable,
        AioRpcError."""
        return await call_with_retries(what, call, give_up_after=round(self.seconds_left, 2))


async def run_probe(target: str, config: RunConfig, *, deadline_seconds: float) -> bool:
    """Run the checks of a target, print a line for each, and return whether all passed."""
    probe = Probe(config=config, deadline=asyncio.get_running_loop().time() + deadline_seconds)
    try:
        await CHECKS[target](probe)
    except (CheckFailed, errors.SlipstreamError) as error:
        _say("FAIL", target, str(error))
    except grpc.aio.AioRpcError as error:
        _say("FAIL", target, f"{error.code().name}: {error.details()}")
    else:
        return True
    return False


async def check_replay(probe: Probe) -> None:
    """Check the health of replay, and its ledger, which is in Redis. Errors: CheckFailed, Unreachable."""
    async with probe.channel(probe.config.replay.address) as channel:
        await _check_health(probe, "replay", channel, probe.config.replay.address)
        ledger, version = await _stats(probe, _replay(channel))
        _say("ok", "redis", f"{ledger.inserted} groups inserted, version {version} announced")
        _check_ledger(ledger)


async def check_verifier(probe: Probe) -> None:
    """Check the health of the verifier. Errors: CheckFailed, Unreachable."""
    async with probe.channel(probe.config.verifier.address) as channel:
        await _check_health(probe, "verifier", channel, probe.config.verifier.address)


async def check_teacher(probe: Probe) -> None:
    """Check the health of one pod behind the teacher's address. Errors: CheckFailed, Unreachable."""
    async with probe.channel(probe.config.teacher.address) as channel:
        await _check_health(probe, "teacher", channel, probe.config.teacher.address)


async def check_learner(probe: Probe) -> None:
    """Check the health of the learner, and print its policy version and the size of its fleet."""
    async with probe.channel(probe.config.learner.address) as channel:
        await _check_health(probe, "learner", channel, probe.config.learner.address)
        stub: Any = FleetStub(channel)  # type: ignore[no-untyped-call, unused-ignore]
        request = learner_pb2.GetPolicyRequest()
        policy = await probe.ask("GetPolicy", lambda: stub.GetPolicy(request, timeout=CALL_SECONDS))
        _say("ok", "policy", f"version {policy.version}, {len(policy.members)} workers in the fleet")


async def check_circle(probe: Probe) -> None:
    """Check that a prompt can be leased, its answer scored, and the lease returned."""
    replay_address, verifier_address = probe.config.replay.address, probe.config.verifier.address
    async with probe.channel(replay_address) as to_replay, probe.channel(verifier_address) as to_verifier:
        await _check_health(probe, "replay", to_replay, replay_address)
        await _check_health(probe, "verifier", to_verifier, verifier_address)
        replay, worker = _replay(to_replay), f"probe-{secrets.token_hex(4)}"
        lease = await _lease(probe, replay, worker)
        if lease is not None:
            try:
                await _check_score(probe, to_verifier, lease)
            finally:
                await _return_lease(probe, replay, worker, lease)
        ledger, _ = await _stats(probe, replay)
        _check_ledger(ledger)


CHECKS: dict[str, Callable[[Probe], Awaitable[None]]] = {
    "replay": check_replay,
    "verifier": check_verifier,
    "teacher": check_teacher,
    "learner": check_learner,
    "circle": check_circle,
}


async def _check_health(probe: Probe, name: str, channel: grpc.aio.Channel, address: str) -> None:
    """Wait for SERVING. Errors: CheckFailed at the deadline; Unreachable."""
    stub, request = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest()
    statuses = health_pb2.HealthCheckResponse.ServingStatus
    while True:
        answer = await probe.ask(f"{name} at {address}", lambda: stub.Check(request, timeout=CALL_SECONDS))
        if answer.status == statuses.SERVING:
            _say("ok", name, f"serving at {address}")
            return
        if not probe.seconds_left:
            raise CheckFailed(f"{name} at {address} says {statuses.Name(answer.status)}")
        await asyncio.sleep(min(POLL_SECONDS, probe.seconds_left))


async def _stats(probe: Probe, stub: Any) -> tuple[Ledger, int]:
    """Return the ledger and the announced version."""
    request = replay_pb2.GetStatsRequest()
    answer = await probe.ask("GetStats", lambda: stub.GetStats(request, timeout=CALL_SECONDS))
    return replay_codec.ledger_from_proto(answer.ledger), int(answer.version)


def _check_ledger(ledger: Ledger) -> None:
    if ledger.residual:
        raise CheckFailed(f"the ledger does not close: residual {ledger.residual}, in {ledger}")
    _say("ok", "ledger", f"residual 0; {ledger.leased} leased, {ledger.returned} returned")


async def _lease(probe: Probe, stub: Any, worker: str) -> Lease | None:
    """Return the lease of a training prompt.

    None if admission is closed and actors insert groups meanwhile: then the circle works, too.
    Errors: CheckFailed if there is neither a lease nor an inserted group until the deadline.
    """
    before, _ = await _stats(probe, stub)
    request = replay_pb2.LeasePromptsRequest(
        worker_id=worker, max_prompts=1, wait_seconds=ADMISSION_SECONDS, serving_version=NO_EVALUATION
    )
    while True:
        answer = await probe.ask("LeasePrompts", lambda: stub.LeasePrompts(request, timeout=CALL_SECONDS))
        if answer.leases:
            lease = replay_codec.lease_from_proto(answer.leases[0])
            _say("ok", "lease", f"{lease.group_id}, prompt {lease.prompt.prompt_id}")
            return lease
        now, _ = await _stats(probe, stub)
        if now.inserted > before.inserted:
            more = now.inserted - before.inserted
            _say("ok", "inserts", f"admission is closed, and {more} groups came in meanwhile")
            return None
        if not probe.seconds_left:
            raise CheckFailed(
                "admission is closed, and no group came in: does the learner train, and do rollouts run?"
            )


async def _check_score(probe: Probe, channel: grpc.aio.Channel, lease: Lease) -> None:
    """Check that the verifier scores the right answer to the prompt. Errors: CheckFailed."""
    stub: Any = VerifierStub(channel)  # type: ignore[no-untyped-call, unused-ignore]
    request = verifier_pb2.ScoreRequest(
        prompt=codec.prompt_to_proto(lease.prompt),
        answers=[
            verifier_pb2.Answer(
                text=lease.prompt.answer or "probe", tokens=1, finish_reason=types_pb2.FINISH_REASON_STOP
            )
        ],
    )
    timeout = probe.config.verifier.timeout_seconds
    answer = await probe.ask("Score", lambda: stub.Score(request, timeout=timeout))
    rewards = [codec.reward_from_proto(reward) for vector in answer.vectors for reward in vector.rewards]
    wanted = [reward.name for reward in probe.config.rewards]
    if [reward.name for reward in rewards] != wanted:
        raise CheckFailed(f"the verifier scored {[r.name for r in rewards]}; the configuration has {wanted}")
    failed = [f"{reward.name}: {reward.detail}" for reward in rewards if reward.outcome is Outcome.ERROR]
    if failed:
        raise CheckFailed(f"the verifier could not score: {'; '.join(failed)}")
    _say("ok", "score", ", ".join(f"{reward.name} {reward.value:g}" for reward in rewards))


async def _return_lease(probe: Probe, stub: Any, worker: str, lease: Lease) -> None:
    """Return the lease. Errors: CheckFailed if the probe no longer holds it."""
    ref = replay_pb2.LeaseRef(group_id=lease.group_id, lease_epoch=lease.lease_epoch)
    request = replay_pb2.ReturnPromptsRequest(worker_id=worker, leases=[ref])
    answer = await probe.ask("ReturnPrompts", lambda: stub.ReturnPrompts(request, timeout=CALL_SECONDS))
    if answer.returned != 1:
        raise CheckFailed(f"lease {lease.group_id} was no longer ours to return")
    _say("ok", "return", lease.group_id)


def _replay(channel: grpc.aio.Channel) -> Any:
    return ReplayStub(channel)  # type: ignore[no-untyped-call, unused-ignore]


def _say(verdict: str, what: str, text: str) -> None:
    print(f"{verdict:<4}  {what:<8}  {' '.join(text.split())}", flush=True)
