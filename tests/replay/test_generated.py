"""`generated`: the sums over all inserted groups, including filtered ones, that an ack returns."""

import pytest
from replay.driver import Driver, scenario
from slipstream.records import Generated
from slipstream.rpc import replay_codec


@scenario()
async def test_an_ack_returns_what_was_generated_including_filtered_groups(replay: Driver) -> None:
    leases = await replay.lease(3)
    size = leases[0].group_size
    await replay.insert_rewards(leases[0], *[1.0] * size)  # no variance
    await replay.insert_rewards(leases[1], 0.0, *[1.0] * (size - 1))
    await replay.insert_rewards(leases[2], *[None] * size)  # nothing was scored: filtered
    await replay.insert_rewards(leases[1], 0.0, *[1.0] * (size - 1))  # a duplicate is counted once
    generated = replay_codec.generated_from_proto((await replay.acknowledge([], version=1)).generated)
    assert (generated.groups, generated.unvaried_groups) == (2, 1)
    assert generated.reward_sums == {"exact_match": pytest.approx(2 * size - 1)}
    assert generated.reward_counts == {"exact_match": 2 * size}


@scenario(per_step=1)
async def test_what_was_generated_is_counted_from_step_to_step(replay: Driver) -> None:
    counts = []
    for version in (1, 2):
        (lease,) = await replay.lease()
        await replay.insert(lease)
        batch = await replay.sample(1, version=version - 1)
        counts.append((await replay.acknowledge(batch, version=version)).generated.groups)
        await replay.announce(version)
    assert counts == [1, 1]


@scenario(per_step=2)
async def test_a_repeated_step_gets_the_same_generated_as_the_first_time(replay: Driver) -> None:
    await replay.make(2)
    batch = await replay.sample(2)
    first = (await replay.acknowledge(batch, version=1)).generated
    await replay.announce(1)
    await replay.make(1, version=1)
    assert await replay.attach(0) == (0, 2)  # the learner died before the checkpoint of version 1
    assert await replay.sample(2) == batch
    assert (await replay.acknowledge(batch, version=1)).generated == first
    assert first.groups == 2
    await replay.announce(1)
    await replay.make(1, version=1)
    assert (await replay.acknowledge([], version=2)).generated.groups == 2


@scenario(per_step=1)
async def test_the_generated_of_a_durable_step_is_deleted(replay: Driver) -> None:
    await replay.make(1)
    await replay.train(1, version=1)
    await replay.confirm(1)
    assert not await replay.scripts.read_hash("generated_by")


@scenario(per_step=1)
async def test_steps_that_cannot_be_repeated_are_counted_afresh(replay: Driver) -> None:
    for version in (1, 2):
        await replay.make(1, version=version - 1)
        await replay.train(1, version=version)
        await replay.announce(version)
    await replay.confirm(1)
    await replay.attach(0)  # the checkpoint of version 1 is lost, so its step is undone
    assert not await replay.scripts.read_hash("generated_by")


def test_shares_and_means_are_those_of_what_was_generated() -> None:
    generated = Generated(groups=4, unvaried_groups=1, reward_sums={"r": 4.0}, reward_counts={"r": 8})
    assert (generated.unvaried_share, generated.reward_means) == (0.25, {"r": 0.5})
    assert (Generated().unvaried_share, Generated().reward_means) == (0.0, {})
