"""Leasing, returning, expiry, and the admission bound of invariant 3."""

import asyncio
import time

import grpc
import pytest
from replay.driver import ACCEPTED, FENCED, FILTERED, Driver, asking, failure, scenario
from slipstream.replay.values import Slot
from slipstream.replay.waiting import finish_or_undo
from slipstream.v1 import replay_pb2 as pb


def indices(leases: list[pb.Lease]) -> list[int]:
    return [lease.dispatch_index for lease in leases]


@scenario(lease_seconds=60)
async def test_a_lease_carries_its_prompt_size_deadline_and_names(replay: Driver) -> None:
    (lease,) = await replay.lease()
    assert lease.group_id == "g000000000"
    assert (lease.lease_epoch, lease.dispatch_index, lease.group_size) == (1, 0, 2)
    assert lease.prompt.text == "training 0"
    assert lease.prompt.answer == "0"
    assert lease.seconds == 60
    assert lease.purpose == pb.PURPOSE_TRAINING


@scenario(depth=0, per_step=4)
async def test_at_depth_0_one_batch_is_admitted(replay: Driver) -> None:
    assert len(await replay.lease(100)) == 4
    assert await replay.lease(100) == []
    assert (await replay.stats()).admission_free == 0


@scenario(depth=2, per_step=4)
async def test_at_depth_2_three_batches_are_admitted_and_one_more_for_each_version(replay: Driver) -> None:
    assert len(await replay.lease(100)) == 12
    await replay.announce(1)
    assert len(await replay.lease(100)) == 4
    await replay.announce(3)
    assert (await replay.stats()).admission_free == 8
    assert len(await replay.lease(5)) == 5


@scenario(depth=0, per_step=4)
async def test_buffered_in_flight_and_trained_groups_keep_their_slots(replay: Driver) -> None:
    await replay.make(4)
    assert await replay.lease() == []
    batch = await replay.sample(4)
    assert await replay.lease() == []
    await replay.ack(batch, version=1)
    assert await replay.lease() == []
    await replay.announce(1)
    assert len(await replay.lease(100)) == 4


@scenario(depth=0, per_step=4)
async def test_a_filtered_group_frees_its_slot(replay: Driver) -> None:
    leases = await replay.lease(4)
    assert await replay.insert(leases[0], reward=None) == FILTERED
    assert indices(await replay.lease(100)) == [4]


@scenario(depth=0, per_step=4)
async def test_a_dropped_group_frees_its_slot(replay: Driver) -> None:
    await replay.make(4, version=0)
    assert await replay.sample(4, version=3, max_staleness=2) == []
    assert (await replay.ledger()).dropped == {"stale": 4}
    assert indices(await replay.lease(100)) == [4, 5, 6, 7]


@scenario(depth=0, per_step=4)
async def test_returned_prompts_are_leased_again_before_new_ones_oldest_first(replay: Driver) -> None:
    leases = await replay.lease(3)
    assert await replay.return_leases(leases[2], leases[0]) == 2
    again = await replay.lease(100, worker="other")
    assert indices(again) == [0, 2, 3]
    assert [lease.lease_epoch for lease in again] == [2, 2, 1]
    assert again[0].prompt == leases[0].prompt
    ledger = await replay.ledger()
    assert (ledger.leased, ledger.returned, ledger.running) == (6, 2, 4)


@scenario()
async def test_only_the_holder_of_a_lease_can_return_it_and_only_once(replay: Driver) -> None:
    (lease,) = await replay.lease(worker="holder")
    assert await replay.return_leases(lease, worker="stranger") == 0
    assert await replay.return_leases(lease, worker="holder") == 1
    assert await replay.return_leases(lease, worker="holder") == 0
    assert await replay.insert(lease) == FENCED


@scenario(lease_seconds=0.05)
async def test_an_expired_lease_is_counted_and_its_late_worker_is_fenced(replay: Driver) -> None:
    (late,) = await replay.lease(worker="presumed dead")
    await asyncio.sleep(0.06)
    (again,) = await replay.lease(worker="alive")
    assert (again.group_id, again.lease_epoch) == (late.group_id, 2)
    assert await replay.insert(late) == FENCED
    assert await replay.insert(again) == ACCEPTED
    assert await replay.insert(late) == FENCED
    ledger = await replay.ledger()
    assert (ledger.leased, ledger.expired, ledger.inserted, ledger.fenced) == (2, 1, 1, 2)


@scenario(lease_seconds=0.05)
async def test_an_overdue_lease_may_insert_until_its_expiry_is_recorded(replay: Driver) -> None:
    first, second = await replay.lease(2)
    await asyncio.sleep(0.06)
    assert await replay.insert(first) == ACCEPTED
    assert (await replay.store.expire()).expired == 1
    assert await replay.insert(second) == FENCED


@scenario(depth=0, per_step=1)
async def test_a_waiting_worker_gets_the_slot_as_soon_as_it_is_free(replay: Driver) -> None:
    (held,) = await replay.lease(worker="first")
    waiting = asyncio.create_task(replay.lease(worker="second", wait=10))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await replay.return_leases(held, worker="first")
    (got,) = await asyncio.wait_for(waiting, 1)
    assert got.lease_epoch == 2


@scenario(depth=0, per_step=1)
async def test_a_wait_for_admission_ends_in_time_and_is_measured(replay: Driver) -> None:
    await replay.lease()
    started = time.monotonic()
    assert await replay.lease(wait=0.1) == []
    assert 0.1 <= time.monotonic() - started < 1
    waits = replay.metrics.registry.get_sample_value
    assert waits("slipstream_wait_seconds_count", {"what": "admission"}) == 2


@scenario(depth=0, per_step=1)
async def test_a_worker_that_goes_away_while_it_waits_gets_no_lease(replay: Driver) -> None:
    (held,) = await replay.lease()
    waiting = asyncio.create_task(replay.lease(worker="impatient", wait=10))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.sleep(0.05)
    await replay.return_leases(held)
    await asyncio.sleep(0.05)
    assert (await replay.ledger()).running == 0


@scenario()
async def test_a_caller_that_is_cancelled_during_the_script_leaves_no_lease(replay: Driver) -> None:
    async def return_leases(slots: tuple[Slot, ...]) -> None:
        await replay.store.return_leases("w", [(slot.group_id, slot.epoch) for slot in slots])

    step = replay.store.lease(asking(3))
    call = asyncio.create_task(finish_or_undo(step, return_leases))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    ledger = await replay.ledger()
    assert (ledger.leased, ledger.returned, ledger.running) == (3, 3, 0)


@scenario()
async def test_an_invalid_request_is_an_error_that_says_what_is_wrong(replay: Driver) -> None:
    for call, words in (
        (replay.lease(0), "max_prompts is 0"),
        (replay.lease(worker=""), "worker_id is empty"),
        (replay.lease(wait=float("inf")), "wait_seconds is inf"),
        (replay.return_leases(pb.Lease(group_id="x:y")), "'x:y' is not a group id"),
        (replay.sample(0), "groups is 0"),
        (replay.announce(-1), "version is -1"),
    ):
        error = await failure(call)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert words in str(error.details())
