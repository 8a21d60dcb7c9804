"""Batches: sample, acknowledge, release, keep until a checkpoint, and attach a restarted learner."""

import asyncio
import time
from collections.abc import Sequence

import grpc
from replay.driver import ACCEPTED, Driver, failure, scenario, until
from slipstream.v1 import replay_pb2 as pb
from slipstream.v1 import types_pb2


def indices(batch: Sequence[types_pb2.Group]) -> list[int]:
    return [group.dispatch_index for group in batch]


@scenario()
async def test_a_batch_is_the_oldest_dispatches_whatever_finished_first(replay: Driver) -> None:
    leases = await replay.lease(6)
    for lease in reversed(leases):
        await replay.insert(lease)
    assert indices(await replay.sample(4)) == [0, 1, 2, 3]


@scenario(lease_seconds=0.05)
async def test_a_prompt_that_was_leased_again_keeps_its_place(replay: Driver) -> None:
    first, second, third = await replay.lease(3)
    await replay.insert(second)
    await replay.insert(third)
    await asyncio.sleep(0.06)
    (again,) = await replay.lease()
    assert again.group_id == first.group_id
    await replay.insert(again)
    assert indices(await replay.sample(2)) == [0, 1]


@scenario()
async def test_a_batch_is_given_only_when_it_is_full(replay: Driver) -> None:
    await replay.make(3)
    assert await replay.sample(4) == []
    assert (await replay.ledger()).buffered == 3


@scenario()
async def test_a_waiting_learner_gets_the_batch_when_it_is_full(replay: Driver) -> None:
    await replay.make(3)
    waiting = asyncio.create_task(replay.sample(4, wait=10))
    await asyncio.sleep(0.05)
    await replay.make(1)
    assert len(await asyncio.wait_for(waiting, 1)) == 4


@scenario()
async def test_calls_at_the_same_time_never_get_the_same_group(replay: Driver) -> None:
    await replay.make(8)
    calls = (replay.sample(2, version=version) for version in range(8))
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    batches = [batch for batch in outcomes if isinstance(batch, list)]
    group_ids = [group.group_id for batch in batches for group in batch]
    assert len(group_ids) == len(set(group_ids)) >= 2


@scenario()
async def test_a_repeated_request_gets_the_batch_that_is_in_flight_for_the_step(replay: Driver) -> None:
    await replay.make(4)
    batch = await replay.sample(2, version=3)
    assert await replay.sample(2, version=3) == batch
    assert indices(await replay.sample(2, version=4)) == [2, 3]
    await replay.ack(batch, version=4)
    assert await replay.sample(2, version=3) == []
    assert (await replay.ledger()).in_flight == 2


@scenario()
async def test_a_group_is_dropped_only_when_its_newest_token_is_over_age(replay: Driver) -> None:
    await replay.announce(2)
    old, edge = await replay.lease(2)
    await replay.insert(old, version=1)
    await replay.insert(edge, version=2)
    assert indices(await replay.sample(1, version=4, max_staleness=2)) == [edge.dispatch_index]
    assert (await replay.ledger()).dropped == {"stale": 1}
    assert await replay.stored_bytes(old.group_id) is None


@scenario()
async def test_a_released_batch_is_back_at_its_old_place(replay: Driver) -> None:
    await replay.make(6)
    batch = await replay.sample(4)
    assert await replay.release(batch) == 4
    assert await replay.release(batch) == 0
    assert indices(await replay.sample(2)) == [0, 1]


@scenario()
async def test_a_learner_that_disconnects_in_the_middle_of_a_batch_releases_it(replay: Driver) -> None:
    for lease in await replay.lease(4):
        assert (await replay.insert_message(_large_group(lease))).outcome == ACCEPTED
    hand_out = replay.learner.next_hand_out()
    call = replay.stub.SampleBatch(pb.SampleBatchRequest(groups=4, max_staleness=8, hand_out=hand_out))
    await call.read()
    assert (await replay.ledger()).in_flight == 4
    call.cancel()

    async def released() -> bool:
        ledger = await replay.ledger()
        return (ledger.in_flight, ledger.buffered) == (0, 4)

    await until(released)


@scenario()
async def test_a_waiting_learner_gets_an_empty_response_each_second(replay: Driver) -> None:
    request = pb.SampleBatchRequest(
        groups=1, max_staleness=8, wait_seconds=2.5, hand_out=replay.learner.next_hand_out()
    )
    began = time.monotonic()
    heard = [(answer.group, time.monotonic() - began) async for answer in replay.stub.SampleBatch(request)]
    assert [group for group, _ in heard] == [b"", b""]
    assert heard[0][1] < 2


@scenario(depth=0)
async def test_acking_twice_changes_nothing(replay: Driver) -> None:
    await replay.make(4)
    batch = await replay.train(4, version=1)
    assert await replay.ack(batch, version=1) == 0
    assert await replay.release(batch) == 0
    ledger = await replay.ledger()
    assert (ledger.trained, ledger.tokens_trained, ledger.in_flight) == (4, 24, 0)


@scenario()
async def test_trained_groups_are_kept_until_their_checkpoint_is_durable(replay: Driver) -> None:
    await replay.make(6)
    first = await replay.train(2, version=1)
    second = await replay.train(2, version=2)
    assert (await replay.stats()).kept == 4
    assert await replay.confirm(1) == 2
    assert await replay.confirm(1) == 0
    assert (await replay.stats()).kept == 2
    assert await replay.stored_bytes(first[0].group_id) is None
    assert await replay.stored_bytes(second[0].group_id) is not None
    assert (await replay.ledger()).trained == 4


@scenario()
async def test_a_learner_that_restarts_gets_back_what_later_steps_consumed(replay: Driver) -> None:
    leases = await replay.make(8)
    await replay.train(2, version=1)
    await replay.confirm(1)
    await replay.train(2, version=2)
    await replay.announce(2)
    in_flight = await replay.sample(2, version=2)
    assert await replay.attach(1) == (2, 2)
    stats = await replay.stats()
    assert (stats.version, stats.kept, stats.ledger.trained, stats.ledger.buffered) == (1, 0, 2, 6)
    assert stats.ledger.tokens_trained == 12
    assert (await failure(replay.ack(in_flight, version=3))).code() is grpc.StatusCode.ABORTED
    again = await replay.sample(6, version=1)
    assert indices(again) == [lease.dispatch_index for lease in leases[2:]]


@scenario()
async def test_attaching_twice_changes_nothing(replay: Driver) -> None:
    await replay.make(4)
    await replay.train(4, version=1)
    assert await replay.attach(0) == (0, 4)
    assert await replay.attach(0) == (0, 0)
    assert (await replay.ledger()).buffered == 4


@scenario(depth=1, per_step=4)
async def test_admission_is_right_after_an_attach_to_an_unbroken_run(replay: Driver) -> None:
    for version in (1, 2):
        await replay.make(4, version=version - 1)
        await replay.train(4, version=version)
        await replay.announce(version)
    await replay.attach(1)
    assert (await replay.stats()).admission_free == 4


@scenario()
async def test_the_response_to_an_ack_has_the_position_in_the_data(replay: Driver) -> None:
    leases = await replay.make(4)  # 0 to 3 are buffered
    returned, running = await replay.lease(2)
    await replay.return_leases(returned)
    batch = await replay.sample(2, version=0)
    cursor = (await replay.acknowledge(batch, version=1)).cursor
    assert (cursor.dispatched, list(cursor.open)) == (6, [2, 3, 4, 5])
    assert [lease.dispatch_index for lease in (*leases[2:], returned, running)] == [2, 3, 4, 5]


@scenario()
async def test_an_empty_redis_continues_in_the_data_at_the_checkpoint(replay: Driver) -> None:
    await replay.attach(3, pb.Cursor(dispatched=40, open=[31, 38]))
    assert [lease.dispatch_index for lease in await replay.lease(4)] == [31, 38, 40, 41]
    assert (await replay.ledger()).residual == 0


@scenario()
async def test_a_redis_that_is_ahead_of_the_checkpoint_keeps_its_position(replay: Driver) -> None:
    await replay.make(4)
    await replay.attach(0, pb.Cursor(dispatched=2, open=[0, 1]))
    assert [lease.dispatch_index for lease in await replay.lease(2)] == [4, 5]
    await replay.attach(0, pb.Cursor(dispatched=7, open=[3, 6]))  # 3 is in the buffer already, 6 is not
    assert [lease.dispatch_index for lease in await replay.lease(2)] == [6, 7]


@scenario(depth=1, per_step=4)
async def test_a_learner_that_continues_on_an_empty_redis_is_given_no_more_than_its_depth(
    replay: Driver,
) -> None:
    await replay.attach(100)
    assert len(await replay.lease(1000, serving=100)) == 8


@scenario(depth=0, per_step=4)
async def test_a_learner_that_restarts_before_a_durable_checkpoint_still_gets_batches(replay: Driver) -> None:
    for version in (1, 2, 3):
        await replay.make(4, version=version - 1)
        await replay.train(4, version=version)
        await replay.announce(version)
    await replay.confirm(3)
    await replay.attach(1)
    assert len(await replay.lease(100)) == 4


def _large_group(lease: pb.Lease) -> types_pb2.Group:
    """Insert groups of some MiB, so that a stream of them does not fit into the buffers of the connection."""
    tokens = 400_000
    span = types_pb2.VersionSpan(version=0, start=0, end=tokens)
    answer = types_pb2.Completion(
        token_ids=range(tokens),
        logprobs=[-0.5] * tokens,
        mask=b"\x01" * tokens,
        spans=[span],
        finish_reason=types_pb2.FINISH_REASON_STOP,
        rewards=[types_pb2.Reward(name="exact_match", value=1, outcome=types_pb2.OUTCOME_SCORE)],
    )
    return types_pb2.Group(
        group_id=lease.group_id,
        lease_epoch=lease.lease_epoch,
        prompt=lease.prompt,
        completions=[answer] * lease.group_size,
    )
