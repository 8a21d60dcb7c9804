"""A batch belongs to its newest hand-out: calls of older hand-outs and older learners change nothing."""

import asyncio
import time
from pathlib import Path

import grpc
import pytest
from faults.fault import NO_FAULT, Fault, FaultFile
from faults.grpc_proxy import GrpcProxy
from faults.tcp_proxy import tcp_proxy
from replay.driver import ACCEPTED, Driver, completion, failure, scenario, until
from slipstream.learner.clients import ReplayClient, TrainedTwice
from slipstream.records import START
from slipstream.rpc.channel import open_channel
from slipstream.rpc.errors import Superseded

MEGABYTE_OF_TOKENS = 70_000
LATE_SECONDS = 0.5
"""Time in which a service on this machine notices a closed connection."""


async def make_large(replay: Driver, groups: int) -> None:
    """Insert groups of about a megabyte, more than fits into the buffers of a connection."""
    answer = completion(tokens=MEGABYTE_OF_TOKENS)
    for lease in await replay.lease(groups):
        assert await replay.insert_completions(lease, [answer] * lease.group_size) == ACCEPTED


@pytest.mark.parametrize(("requests", "answers"), [(True, True), (False, True)], ids=["both ways", "answers"])
def test_the_late_end_of_a_broken_stream_does_not_release_a_batch_that_was_given_again(
    redis_url: str, requests: bool, answers: bool
) -> None:
    @scenario(per_step=12)
    async def play(replay: Driver) -> None:
        await make_large(replay, 12)
        async with (
            tcp_proxy(replay.address) as proxy,
            open_channel(proxy.address, replay.config.rpc) as channel,
        ):
            client = ReplayClient(channel, replay.config)
            await client.attach(0, START)
            sampling = asyncio.create_task(client.sample(0))
            await until(lambda: proxy.connections[0].answered_bytes > 3_000_000)
            broken = proxy.connections[0]
            broken.half_open(requests=requests, answers=answers)
            broken.client.close()  # the learner notices and calls again; replay has not noticed yet
            batch = await sampling
            assert [group.dispatch_index for group in batch] == list(range(12))
            assert len(proxy.connections) == 2
            broken.server.close()
            await asyncio.sleep(LATE_SECONDS)
            assert (await replay.ledger()).in_flight == 12
            await client.ack(batch, 1)
            ledger = await replay.ledger()
            assert (ledger.trained, ledger.in_flight, ledger.buffered) == (12, 0, 0)

    play(redis_url)


def test_a_batch_that_never_arrives_is_requested_again_within_seconds(redis_url: str, tmp_path: Path) -> None:
    """The connection stays open and only the response is lost, so keepalive pings do not show it."""

    @scenario()
    async def play(replay: Driver) -> None:
        await replay.make(4)
        faults = FaultFile(tmp_path / "path.json")
        proxy = GrpcProxy(replay.address, faults, seed=1)
        async with open_channel(await proxy.listen(), replay.config.rpc) as channel:
            client = ReplayClient(channel, replay.config)
            await client.attach(0, START)
            faults.write(Fault(lost_answers=1.0))
            began = time.monotonic()
            sampling = asyncio.create_task(client.sample(0))
            await asyncio.sleep(1)
            faults.write(NO_FAULT)
            assert len(await sampling) == 4
            assert time.monotonic() - began < 6
        await proxy.close()

    play(redis_url)


@scenario()
async def test_releasing_and_acknowledging_an_older_hand_out_leaves_the_newer_one_as_it_is(
    replay: Driver,
) -> None:
    await replay.make(4)
    batch = await replay.sample(4)
    old = replay.learner.hand_out_of(batch)
    assert await replay.sample(4) == batch
    assert await replay.release(batch, hand_out=old) == 0
    reply = await replay.acknowledge(batch, version=1, hand_out=old)
    assert (reply.acked, reply.retrained) == (0, 4)
    ledger = await replay.ledger()
    assert (ledger.in_flight, ledger.trained) == (4, 0)
    await replay.attach(0)  # the step is undone


@scenario()
async def test_a_call_that_arrives_after_a_newer_one_gets_nothing(replay: Driver) -> None:
    await replay.make(8)
    delayed = replay.learner.next_hand_out()
    batch = await replay.sample(4)
    error = await failure(replay.sample(4, hand_out=delayed))
    assert (error.code(), error.details()) == (
        grpc.StatusCode.ABORTED,
        "hand-out 1: hand-out 2 is newer",
    )
    assert await replay.ack(batch, version=1) == 4


@scenario()
async def test_a_group_that_two_steps_trained_on_is_seen_in_the_residual_until_it_is_undone(
    replay: Driver,
) -> None:
    await replay.make(4)
    await replay.attach(0)
    batch = await replay.sample(4)
    old = replay.learner.hand_out_of(batch)
    await replay.release(batch)
    again = await replay.sample(4)
    await replay.acknowledge(batch, version=1, hand_out=old)
    assert await replay.ack(again, version=2) == 4
    stats = await replay.stats()
    assert (stats.ledger.trained, stats.ledger.retrained, stats.residual) == (4, 4, 4)
    await replay.attach(1)
    stats = await replay.stats()
    assert (stats.ledger.retrained, stats.residual) == (
        4,
        4,
    )  # the checkpoint of step 1 contains the repeated groups
    await replay.attach(0)
    assert (await replay.stats()).residual == 0


@scenario(depth=1, per_step=4)
async def test_a_step_on_groups_that_were_trained_on_before_is_seen_in_the_residual(replay: Driver) -> None:
    await replay.make(4)
    batch = await replay.train(4, version=1)
    assert (
        await replay.acknowledge(batch, version=1)
    ).retrained == 0  # the same step again, as after a lost response
    assert (await replay.acknowledge(batch, version=2)).retrained == 4
    assert (await replay.stats()).residual == 4
    await replay.confirm(1)
    assert (await replay.acknowledge(batch, version=1)).retrained == 0
    await replay.attach(1)
    assert (await replay.stats()).residual == 0


@scenario()
async def test_a_learner_ends_when_its_batch_was_taken_back_and_when_another_has_attached(
    replay: Driver,
) -> None:
    await replay.make(8)
    async with open_channel(replay.address, replay.config.rpc) as channel:
        first, second = ReplayClient(channel, replay.config), ReplayClient(channel, replay.config)
        await first.attach(0, START)
        batch = await first.sample(0)
        await first.release(batch)
        with pytest.raises(TrainedTwice, match="step 1 trained on 4 groups"):
            await first.ack(batch, 1)
        await second.attach(0, START)
        for call in (
            first.sample(0),
            first.ack(batch, 1),
            first.announce(1),
            first.confirm_checkpoint(1),
            first.start_evaluation(1, prompts=1, samples_per_prompt=1, reward="exact_match"),
        ):
            with pytest.raises(Superseded, match="learner epoch 1: by now it is 2"):
                await call
        await first.release(batch)
        assert len(await second.ack(await second.sample(0), 1)) == 2


@scenario()
async def test_an_attach_that_is_delayed_on_the_way_takes_nothing_from_the_learner(replay: Driver) -> None:
    await replay.make(4)
    await replay.attach(0, learner_id="this one")
    batch = await replay.sample(4)
    await replay.start_evaluation(prompts=2)
    assert await replay.attach(0, learner_id="this one") == (0, 0)
    assert await replay.ack(batch, version=1) == 4
    assert len(await replay.lease(2)) == 2
    await replay.attach(1, learner_id="the next one")
    assert await replay.attach(0, learner_id="this one") == (0, 0)
    assert (await failure(replay.announce(2))).code() is grpc.StatusCode.ABORTED


@scenario(depth=0)
async def test_an_announcement_that_is_delayed_on_the_way_does_not_close_admission(replay: Driver) -> None:
    await replay.announce(2)
    free = (await replay.stats()).admission_free
    await replay.announce(1)
    assert ((await replay.stats()).version, (await replay.stats()).admission_free) == (2, free)


@scenario()
async def test_an_evaluation_that_is_asked_for_again_is_the_same(replay: Driver) -> None:
    name = await replay.start_evaluation(prompts=2, request_id="one")
    assert await replay.start_evaluation(prompts=2, request_id="one") == name
    assert await replay.start_evaluation(prompts=2, request_id="two") != name
