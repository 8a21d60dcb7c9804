"""A version reaches the rollouts completely or not at all, over real gRPC and real gloo groups."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import grpc
import pytest
import torch
from learner.fakes import said
from learner.worker import TIMEOUT, Learner, Worker, play, until
from slipstream.config import RpcConfig
from slipstream.learner.broadcast.publisher import TornSnapshot, catch_up
from slipstream.learner.policy.model import Policy
from slipstream.rpc.channel import open_channel
from slipstream.rpc.errors import Stuck
from slipstream.v1 import learner_pb2 as pb
from slipstream.v1.learner_pb2_grpc import FleetStub
from slipstream.weights.group import Rendezvous, WeightGroup, form_group
from slipstream.weights.last_deadline import LAST
from slipstream.weights.rendezvous.client import NonceRefused, open_tunnel

LATE = 60.0


def test_all_workers_get_exactly_the_learners_weights_at_every_version_in_one_epoch(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        a, b = Worker("a"), Worker("b")
        await learner.join(a, b)
        for version in (1, 2, 3):
            published = await learner.publish(version)
            assert (published.rollouts, published.pause_seconds) == (2, 0.5)
            assert learner.has(a)
            assert learner.has(b)
            assert (a.version, b.version) == (version, version)
        assert a.epochs == b.epochs == [learner.fleet.epoch]

    play(policy, scene)


def test_the_first_failed_publication_is_a_rise_of_its_counter(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        assert learner.metrics.registry.get_sample_value("slipstream_publish_failures_total") == 0

    play(policy, scene)


def test_publishing_to_an_empty_fleet_succeeds(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        assert (await learner.publish(4)).rollouts == 0
        assert learner.fleet.version == 4

    play(policy, scene)


def test_a_late_joiner_gets_the_current_version_and_nobody_else_gets_anything(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        early, late = Worker("early"), Worker("late")
        await learner.join(early)
        await learner.publish(5)
        before, epoch = list(early.events), learner.fleet.epoch
        catching_up = asyncio.create_task(catch_up(learner.publisher, learner.fleet, learner.weights))
        await learner.join(late)
        await late.events.wait_for("serving 5")
        assert learner.has(late)
        assert list(early.events) == before
        assert learner.fleet.epoch > epoch
        await until(lambda: not learner.weights.locked())
        await learner.publish(6)
        assert learner.has(early)
        assert learner.has(late)
        catching_up.cancel()

    play(policy, scene)


def test_an_unused_nonce_is_invalid_after_its_epoch(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        mortal = Worker("mortal", faults=("die_at_begin",))
        await learner.join(Worker("other"), mortal)
        assert (await learner.publish(1)).rollouts == 1
        unused = mortal.prepare
        server = {"host": unused.store_host, "port": unused.store_port, "timeout_seconds": TIMEOUT}
        with pytest.raises(NonceRefused):
            await asyncio.to_thread(partial(open_tunnel, nonce=unused.rendezvous_nonce, **server))
        assert "rendezvous refused a connection peer=127.0.0.1:" in said(learner.log)

    play(policy, scene)


def test_each_worker_gets_a_nonce_of_its_own_in_each_epoch_and_none_is_logged(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        early, late = Worker("early"), Worker("late")
        await learner.join(early)
        await learner.publish(1)
        first = early.prepare.rendezvous_nonce
        await learner.publish(2)
        assert early.prepare.rendezvous_nonce == b"", "the group exists; nobody needs one"
        await learner.join(late)
        await learner.publish(3)
        nonces = {first, early.prepare.rendezvous_nonce, late.prepare.rendezvous_nonce}
        assert [len(nonce) for nonce in nonces] == [32, 32, 32]
        for nonce in nonces:
            assert not any(form in said(learner.log) for form in (nonce.hex(), repr(nonce)[2:-1]))

    play(policy, scene)


@pytest.mark.parametrize(
    "fault", ["die_at_prepare", "die_at_begin", "die_in_the_middle", "die_at_applied", "die_at_commit"]
)
@pytest.mark.parametrize("grouped", [False, True], ids=["new group", "old group"])
def test_when_a_worker_dies_the_others_end_up_serving_the_version_in_a_new_epoch(
    policy: Policy, fault: str, grouped: bool
) -> None:
    async def scene(learner: Learner) -> None:
        healthy = [Worker("a"), Worker("c")]
        mortal = Worker("b")
        await learner.join(*healthy, mortal)
        if grouped:
            await learner.publish(1)
        epoch = learner.fleet.epoch
        mortal.faults.append(fault)
        started = time.monotonic()
        published = await learner.publish(2)
        assert time.monotonic() - started < 4 * TIMEOUT
        assert published.rollouts == 2
        assert "died" in mortal.events
        for worker in healthy:
            assert worker.version == 2
            assert learner.has(worker)
        await learner.publish(3)
        assert learner.fleet.epoch > epoch
        assert all(learner.has(worker) and worker.version == 3 for worker in healthy)
        assert {member.worker_id for member in learner.fleet.members()} == {"a", "c"}

    play(policy, scene)


@pytest.mark.parametrize("fault", ["die_at_prepare", "die_at_begin", "die_in_the_middle", "die_at_applied"])
def test_no_member_waits_for_a_deadline_when_a_worker_has_died(policy: Policy, fault: str) -> None:
    """The learner does not wait for a deadline, and no worker does that is joining the process group."""

    async def scene(learner: Learner) -> None:
        await learner.join(Worker("a"), Worker("b", faults=(fault,)), Worker("c"))
        published = await learner.publish(1)
        assert published.rollouts == 2
        assert published.seconds < LATE / 3

    play(policy, scene, timeout_seconds=LATE)


def test_a_worker_that_does_not_answer_is_dropped_at_the_deadline(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        silent, other = Worker("silent", faults=("silent_at_prepare",)), Worker("other")
        await learner.join(silent, other)
        started = time.monotonic()
        published = await learner.publish(1)
        assert TIMEOUT <= time.monotonic() - started < 3 * TIMEOUT
        assert published.rollouts == 1
        assert learner.has(other)
        assert "silent did not answer `ready`" in said(learner.log)

    play(policy, scene)


@pytest.mark.parametrize("max_lag", [0, 2])
def test_a_fleet_whose_only_engine_hangs_after_a_transfer_is_left_at_the_deadline(
    policy: Policy, max_lag: int
) -> None:
    async def scene(learner: Learner) -> None:
        await learner.join(Worker("hangs", faults=("silent_at_begin",)))
        published = await learner.publish(1, seconds=5 * TIMEOUT)
        assert TIMEOUT <= published.seconds < 3 * TIMEOUT
        assert published.rollouts == 0
        assert "did not answer `applied`" in said(learner.log)
        other = Worker("other")
        await learner.join(other)
        assert (await learner.publish(2)).rollouts == 1
        assert learner.has(other)

    play(policy, scene, max_lag=max_lag)


def test_a_collective_that_blocks_for_ever_ends_the_publication_by_its_last_deadline(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the timeout of the process group nor closing it ends the broadcast, as NCCL may block, and the
    other member is stuck as well."""

    def without_timeout(rendezvous: Rendezvous, **how: Any) -> WeightGroup:
        group = form_group(rendezvous, **how)
        group._timeout = timedelta(hours=1)
        closing.append(group.close)
        monkeypatch.setattr(group, "close", lambda: None)
        return group

    async def scene(learner: Learner) -> None:
        stuck = Worker("stuck", faults=("stuck_in_the_middle",))
        await learner.join(stuck)
        started = time.monotonic()
        try:
            with pytest.raises(Stuck, match=r"the broadcast of version 1 made no progress for 4 s"):
                await learner.publish(1)
            assert LAST * TIMEOUT <= time.monotonic() - started < 4 * TIMEOUT
            blocked = [thread for thread in threading.enumerate() if "broadcast" in thread.name]
            assert blocked, "the call had come back by itself"
        finally:
            stuck.released.set()
            for close in closing:
                close()

    closing: list[Callable[[], None]] = []
    for name in ("slipstream.learner.broadcast.own_weights.form_group", "learner.worker.form_group"):
        monkeypatch.setattr(name, without_timeout)
    play(policy, scene)


def test_a_survivor_whose_own_wait_ends_after_the_learners_is_kept(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        survivor, mortal = Worker("a", faults=("slow_to_pause",)), Worker("b", faults=("die_at_begin",))
        await learner.join(survivor, mortal)
        assert (await learner.publish(1)).rollouts == 1
        assert survivor.events.count("begin") == 2
        assert learner.has(survivor)

    play(policy, scene)


def test_a_damaged_transfer_is_sent_again_until_it_is_right(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        unlucky, other = Worker("unlucky", faults=("damaged", "damaged")), Worker("other")
        await learner.join(unlucky, other)
        assert (await learner.publish(1)).rollouts == 2
        assert learner.has(unlucky)
        assert learner.has(other)
        assert other.events.count("begin") == 1, "who has it need not get it again"
        assert "arrived damaged" in said(learner.log)

    play(policy, scene)


def test_three_failures_in_a_row_put_a_worker_out(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        broken, other = Worker("broken", faults=("damaged",) * 3), Worker("other")
        await learner.join(broken, other)
        assert (await learner.publish(1)).rollouts == 1
        assert (broken.version, other.version) == (-1, 1)
        assert 'rollout=broken reason="3 failed updates in a row"' in said(learner.log)

    play(policy, scene)


def test_failures_that_are_not_in_a_row_do_not_add_up(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        worker = Worker("w", faults=("damaged", "damaged"))
        await learner.join(worker)
        await learner.publish(1)
        worker.faults += ["damaged", "damaged"]
        assert (await learner.publish(2)).rollouts == 1
        assert learner.has(worker)

    play(policy, scene)


@pytest.mark.parametrize(
    ("join", "says"),
    [
        (
            {"model_fingerprint": "another"},
            "has model another, the learner the-model; give both the same model directory",
        ),
        ({"backend": "gloo"}, "has backend gloo, the learner nccl; give both the same kind of device"),
        (
            {"nccl_version": "2.30.7"},
            "has NCCL 2.30.7, the learner 2.29.7; two versions of NCCL do not form a group: build both",
        ),
    ],
)
def test_a_worker_with_another_model_backend_or_nccl_is_refused_with_what_to_change(
    policy: Policy, join: dict[str, str], says: str
) -> None:
    async def scene(learner: Learner) -> None:
        learner.fleet._backend, learner.fleet._nccl_version = "nccl", "2.29.7"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Worker("w", **{"backend": "nccl", "nccl_version": "2.29.7"} | join).run(learner.address)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert says in str(caught.value.details())
        assert learner.fleet.members() == []

    play(policy, scene)


def test_a_stream_that_does_not_begin_with_join_is_refused(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        async with open_channel(learner.address, RpcConfig()) as channel:
            call = FleetStub(channel).Join(iter([pb.WorkerMessage(leave=pb.Leave(reason="x"))]))
            with pytest.raises(grpc.aio.AioRpcError, match="must be Join"):
                await call.read()

    play(policy, scene)


def test_the_error_of_an_unreadable_stream_names_the_worker_and_the_reason(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        worker = Worker("w")
        await learner.join(worker)
        (member,) = learner.fleet.members()

        def unreadable(message: pb.WorkerMessage) -> None:
            raise ValueError("a message of the future")

        member.receive = unreadable  # type: ignore[method-assign]
        with suppress(AssertionError, TimeoutError):
            await learner.publish(1)
        await until(lambda: learner.fleet.members() == [])
        log_lines = said(learner.log)
        assert "reading of a rollout's stream failed rollout=w" in log_lines
        assert "ValueError: a message of the future" in log_lines

    play(policy, scene)


def test_a_worker_that_joins_again_replaces_its_old_stream_and_is_loaded_anew(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        first, second = Worker("w"), Worker("w")
        (running,) = await learner.join(first)
        await learner.publish(1)
        (old,) = learner.fleet.members()
        learner.tasks.append(asyncio.create_task(second.run(learner.address)))
        await until(lambda: learner.fleet.members() not in ([], [old]))
        with suppress(grpc.aio.AioRpcError):
            await asyncio.wait_for(running, 5)
        assert (await learner.publish(2)).rollouts == 1
        assert (first.version, second.version) == (1, 2)
        assert learner.has(second)

    play(policy, scene)


def test_a_worker_whose_stream_was_cut_keeps_what_this_learner_gave_it(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        first = Worker("w")
        (running,) = await learner.join(first)
        await learner.publish(3)
        running.cancel()
        await until(lambda: not learner.fleet.members())
        again = Worker("w", serving_version=3)
        await learner.join(again)
        await learner.publisher.publish(3)
        assert "prepare" not in again.events

    play(policy, scene)


def test_a_version_of_an_earlier_life_of_the_learner_is_not_believed(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        stranger = Worker("w", serving_version=3)
        await learner.join(stranger)
        await learner.publish(3)
        assert learner.has(stranger)

    play(policy, scene)


def test_no_joiner_gets_weights_that_are_being_changed_under_an_old_number(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        await learner.publish(1)
        catching_up = asyncio.create_task(catch_up(learner.publisher, learner.fleet, learner.weights))
        worker = Worker("w")
        async with learner.weights:
            with torch.no_grad():
                next(iter(policy.model.parameters())).add_(1.0)
            learner.snapshot.take()
            await learner.join(worker)
            await asyncio.sleep(0.1)
            assert list(worker.events) == []
            await learner.publisher.publish(2)
        assert [e for e in worker.events if e.startswith("serving")] == ["serving 2"]
        assert learner.has(worker)
        catching_up.cancel()

    play(policy, scene)


def test_a_worker_that_leaves_is_gone_without_a_failure(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        (running,) = await learner.join(Worker("w"))
        await learner.publish(1)
        running.cancel()
        await until(lambda: not learner.fleet.members())
        assert (await learner.publish(2)).rollouts == 0
        assert "dropped" not in said(learner.log)

    play(policy, scene)


def test_the_end_of_the_run_is_told_and_closes_every_stream(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        worker = Worker("w")
        (running,) = await learner.join(worker)
        learner.fleet.finish("all steps done")
        await asyncio.wait_for(running, 5)
        assert list(worker.events) == ["finish"]

    play(policy, scene)


def test_the_policy_can_be_asked_for(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        await learner.join(Worker("w"))
        await learner.publish(2)
        await learner.join(Worker("new"))
        async with open_channel(learner.address, RpcConfig()) as channel:
            answer = await FleetStub(channel).GetPolicy(pb.GetPolicyRequest(), timeout=5)
        assert (answer.version, answer.epoch) == (2, 1)
        assert [(m.worker_id, m.version) for m in answer.members] == [("new", -1), ("w", 2)]

    play(policy, scene)


def test_weights_whose_copy_failed_are_never_sent(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        learner.publisher.refuse("the snapshot of version 4 is incomplete")
        with pytest.raises(TornSnapshot, match="the snapshot of version 4 is incomplete"):
            await learner.publisher.publish(4)
        assert learner.fleet.version == 0

    play(policy, scene)
