"""Heartbeats renew leases, three faults retire a prompt, and a repeated request leaks no lease."""

import asyncio
import io
from collections.abc import Awaitable, Callable

import grpc
import pytest
from replay.driver import ACCEPTED, FENCED, Driver, MadeUpPrompts, asking, failure, scenario
from slipstream.replay.gauges import sweep
from slipstream.replay.values import LeaseRequest, Slot
from slipstream.replay.waiting import finish_or_undo
from slipstream.telemetry.logs import Log
from slipstream.v1 import replay_pb2 as pb

LEASE = 0.3


@scenario(lease_seconds=LEASE)
async def test_a_lease_lasts_as_long_as_heartbeats_name_it(replay: Driver) -> None:
    kept, silent = await replay.lease(2)
    for _ in range(8):
        await asyncio.sleep(LEASE / 4)
        assert await replay.renew(kept) == []
        await replay.store.expire()
    ledger = await replay.ledger()
    assert (ledger.running, ledger.expired) == (1, 1)
    assert await replay.insert(kept) == ACCEPTED
    assert await replay.insert(silent) == FENCED


@scenario()
async def test_a_heartbeat_says_which_leases_are_not_the_workers_any_more(replay: Driver) -> None:
    mine, returned, done = await replay.lease(3, worker="w")
    (other,) = await replay.lease(worker="other")
    await replay.return_leases(returned)
    await replay.insert(done)
    (again,) = await replay.lease(worker="other")
    assert again.group_id == returned.group_id
    lost = await replay.renew(mine, returned, done, other)
    assert lost == [returned.group_id, done.group_id, other.group_id]
    assert (await replay.ledger()).running == 3


@scenario(lease_seconds=LEASE)
async def test_leases_of_an_evaluation_are_renewed_too(replay: Driver) -> None:
    await replay.start_evaluation(prompts=1)
    (held_out,) = await replay.lease(1)
    await asyncio.sleep(LEASE * 0.7)
    assert await replay.renew(held_out) == []
    await asyncio.sleep(LEASE * 0.7)
    await replay.store.expire()
    assert await replay.insert(held_out) == ACCEPTED


@scenario(lease_seconds=LEASE)
async def test_leases_are_extended_when_no_heartbeat_could_arrive(replay: Driver) -> None:
    """While Redis or replay is stopped, no heartbeat can arrive, so the leases of workers are extended."""
    (lease,) = await replay.lease()
    await replay.store.expire()
    await _pretend_last_sweep_was(replay, seconds_ago=30)
    await asyncio.sleep(LEASE * 1.2)
    assert [other.group_id for other in await replay.lease(1)] == ["g000000001"]
    swept = await replay.store.expire()
    assert (swept.expired, swept.renewed) == (0, 2)
    assert await replay.insert(lease) == ACCEPTED
    await asyncio.sleep(LEASE * 1.2)
    assert (await replay.store.expire()).expired == 1


async def _pretend_last_sweep_was(replay: Driver, *, seconds_ago: float) -> None:
    key = replay.scripts.prefix + "counters"
    redis = replay.scripts._redis
    await redis.hincrby(key, "watched_at", -int(1000 * seconds_ago))


async def _expire(replay: Driver) -> None:
    await asyncio.sleep(LEASE * 1.2)
    await replay.store.expire()


async def _fail(replay: Driver) -> None:
    ((group_id, epoch),) = await _held(replay)
    await replay.store.return_leases("w", [(group_id, epoch)], fault="group_timeout")


async def _held(replay: Driver) -> list[tuple[str, int]]:
    redis = replay.scripts._redis
    ids = await redis.zrange(replay.scripts.prefix + "leases", 0, -1)
    keys = [f"{replay.scripts.prefix}group:{i.decode()}" for i in ids]
    return [(i.decode(), int(await redis.hget(key, "epoch"))) for i, key in zip(ids, keys, strict=True)]


@pytest.mark.parametrize(("end", "fault"), [(_expire, "expired"), (_fail, "group_timeout")])
def test_a_prompt_whose_lease_ends_by_a_fault_three_times_is_retired_counted_and_named(
    redis_url: str, end: Callable[[Driver], Awaitable[None]], fault: str
) -> None:
    @scenario(lease_seconds=LEASE, depth=0, per_step=1)
    async def play(replay: Driver) -> None:
        for _ in range(2):
            (lease,) = await replay.lease()
            assert lease.group_id == "g000000000"
            await end(replay)
            assert (await replay.ledger()).retired == {}
        await replay.lease()
        await end(replay)
        assert (await replay.ledger()).retired == {fault: 1}
        (following,) = await replay.lease()
        assert following.group_id == "g000000001", "the slot is free, and another prompt's"
        ledger = await replay.ledger()
        assert (ledger.leased, ledger.running, ledger.expired + ledger.returned) == (4, 1, 3)
        assert await replay.insert(lease) == FENCED

    play(redis_url)


@scenario(depth=0, per_step=1)
async def test_each_engine_that_a_prompt_ended_is_a_fault_and_the_next_lease_has_their_number(
    replay: Driver,
) -> None:
    (lease,) = await replay.lease()
    assert lease.engines_lost == 0
    await replay.return_leases(lease, fault="engine_died", engines_lost=2)
    assert (await replay.ledger()).retired == {}
    (lease,) = await replay.lease()
    assert (lease.group_id, lease.engines_lost) == ("g000000000", 2)
    await replay.return_leases(lease, fault="engine_died", engines_lost=1)
    assert (await replay.ledger()).retired == {"engine_died": 1}
    (following,) = await replay.lease()
    assert (following.group_id, following.engines_lost) == ("g000000001", 0)


@scenario(depth=0, per_step=1)
async def test_prompts_that_are_returned_in_order_are_never_retired(replay: Driver) -> None:
    for _ in range(5):
        (lease,) = await replay.lease()
        assert lease.group_id == "g000000000"
        await replay.return_leases(lease)
    assert (await replay.ledger()).retired == {}


@scenario(depth=0, per_step=1)
async def test_a_held_out_prompt_that_is_retired_ends_its_evaluation_as_errors(replay: Driver) -> None:
    evaluation = await replay.start_evaluation(prompts=1, samples=3)
    for _ in range(3):
        (lease,) = await replay.lease()
        await replay.return_leases(lease, fault="group_timeout")
    state = await replay.evaluation(evaluation)
    assert (state.done, state.errors, state.completions) == (True, 3, 0)
    assert (await replay.ledger()).retired == {}


@scenario(depth=0, per_step=1)
async def test_the_sweep_logs_a_retired_prompt_by_its_name_once(replay: Driver) -> None:
    for _ in range(3):
        (lease,) = await replay.lease(worker="unlucky")
        await replay.return_leases(lease, worker="unlucky", fault="engine_died")
    log, stop = io.StringIO(), asyncio.Event()
    sweeping = asyncio.create_task(
        sweep(
            replay.store,
            MadeUpPrompts(),
            metrics=replay.metrics,
            log=Log(pod="replay", stream=log),
            stop=stop,
        )
    )
    await asyncio.sleep(1.3)
    stop.set()
    await sweeping
    (line,) = [line for line in log.getvalue().splitlines() if "prompt retired" in line]
    assert "prompt=training-0" in line
    assert "worker=unlucky" in line
    assert "fault=engine_died" in line
    read = replay.metrics.registry.get_sample_value
    assert read("slipstream_prompts_retired", {"reason": "engine_died"}) == 1


@scenario()
async def test_engines_are_lost_by_a_fault_with_a_name(replay: Driver) -> None:
    (lease,) = await replay.lease()
    error = await failure(replay.return_leases(lease, engines_lost=1))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "engines_lost is 1 with the fault ''" in str(error.details())


@scenario()
async def test_a_fault_must_be_a_word(replay: Driver) -> None:
    (lease,) = await replay.lease()
    error = await failure(replay.return_leases(lease, fault="No Such:Thing"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "give a word" in str(error.details())


@scenario(depth=0, per_step=4)
async def test_a_request_whose_response_was_lost_gets_its_leases_again_under_new_epochs(
    replay: Driver,
) -> None:
    lost = await replay.ask_again(3, attempt=1)
    again = await replay.ask_again(3, attempt=2)
    assert [lease.group_id for lease in again] == [lease.group_id for lease in lost]
    assert [lease.lease_epoch for lease in again] == [2, 2, 2]
    ledger = await replay.ledger()
    assert (ledger.leased, ledger.running) == (3, 3)
    assert await replay.return_leases(*lost) == 0, "the late end of the first attempt takes nothing back"
    assert await replay.insert(lost[0]) == FENCED
    assert await replay.insert(again[0]) == ACCEPTED


@scenario(depth=0, per_step=4)
async def test_an_attempt_that_is_overtaken_gets_nothing(replay: Driver) -> None:
    assert len(await replay.ask_again(2, attempt=2)) == 2
    assert await replay.ask_again(2, attempt=1) == []
    assert (await replay.ledger()).running == 2


@scenario(depth=0, per_step=4)
async def test_leases_that_have_ended_meanwhile_are_not_given_again(replay: Driver) -> None:
    first, second = await replay.ask_again(2, attempt=1)
    await replay.return_leases(second)
    again = await replay.ask_again(2, attempt=2)
    assert [(lease.group_id, lease.lease_epoch) for lease in again] == [
        (first.group_id, 2),
        (second.group_id, 2),
    ]
    assert (await replay.ledger()).leased == 3


@scenario(depth=0, per_step=4)
async def test_an_attempt_that_ends_late_does_not_undo_what_the_next_one_was_given(replay: Driver) -> None:
    """The server notices that the first caller has gone only after the second has its answer."""
    request = LeaseRequest(worker="w", max_prompts=2, serving_version=0, request_id="r", attempt=1)
    first = await replay.store.lease(request)

    async def late() -> tuple[Slot, ...]:
        await asyncio.sleep(0.05)
        return first

    async def undo(slots: tuple[Slot, ...]) -> int:
        return await replay.store.return_leases("w", [(slot.group_id, slot.epoch) for slot in slots])

    gone = asyncio.create_task(finish_or_undo(late(), undo))
    await asyncio.sleep(0.01)
    again = await replay.ask_again(2, attempt=2)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert (await replay.ledger()).returned == 0
    assert await replay.renew(*again) == []


@scenario(depth=0, per_step=4)
async def test_activity_names_the_workers_the_oldest_lease_and_the_first_failure(replay: Driver) -> None:
    (old,) = await replay.lease(worker="busy", serving=3)
    await replay.renew(old, worker="busy", serving=3, failure="math: no such module")
    await replay.renew(old, worker="busy", serving=4)
    await replay.renew(worker="idle", serving=-1)
    await asyncio.sleep(0.2)
    await replay.store.lease(asking(1))
    activity = await replay.activity()
    ages = {
        worker.worker_id: (worker.leases, worker.serving_version, worker.scoring_failure)
        for worker in activity.workers
    }
    assert ages == {"busy": (1, 4, "math: no such module"), "idle": (0, -1, ""), "w": (1, 0, "")}
    assert activity.oldest_lease_worker == "busy"
    assert 0.2 <= activity.oldest_lease_seconds < 5
    assert all(0 <= worker.silent_seconds < 5 for worker in activity.workers)
    assert activity.ledger.running == 2
    assert {worker.kind for worker in activity.workers} == {pb.WORKER_KIND_ACTOR}


@scenario()
async def test_activity_has_the_throughput_of_the_last_heartbeat_of_each_worker(replay: Driver) -> None:
    rollout = pb.ListedRollout(worker_id="rollout-0", address="127.0.0.1:5", status={"serving_version": 4})
    for rate in (100.0, 250.5):
        await replay.renew(worker="actor-0", throughput=rate / 100)
        await replay.stub.ReportRollout(pb.ReportRolloutRequest(rollout=rollout, throughput=rate))
    await replay.renew(worker="older-release")
    await replay.lease(worker="actor-0")
    workers = (await replay.store.activity()).workers
    assert {worker.worker_id: worker.throughput for worker in workers} == {
        "actor-0": 2.505,
        "older-release": None,
        "rollout-0": 250.5,
    }


@scenario()
async def test_a_throughput_that_is_no_rate_is_refused(replay: Driver) -> None:
    for wrong in (float("nan"), float("inf"), -1.0):
        with pytest.raises(grpc.aio.AioRpcError, match="must be 0 or greater"):
            await replay.renew(throughput=wrong)


@scenario()
async def test_activity_tells_rollouts_from_actors(replay: Driver) -> None:
    await replay.lease(worker="actor-0", serving=3)
    rollout = pb.ListedRollout(worker_id="rollout-0", address="127.0.0.1:5", status={"serving_version": 4})
    await replay.stub.ReportRollout(pb.ReportRolloutRequest(rollout=rollout))
    activity = await replay.activity()
    assert [(worker.worker_id, worker.kind, worker.serving_version) for worker in activity.workers] == [
        ("actor-0", pb.WORKER_KIND_ACTOR, 3),
        ("rollout-0", pb.WORKER_KIND_ROLLOUT, 4),
    ]
