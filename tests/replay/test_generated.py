"""What the learner hears of everything that was handed in, filtered groups included."""

import pytest
from replay.driver import Driver, scenario
from slipstream.types import Generated


@scenario()
async def test_an_ack_says_what_was_generated_filtered_groups_included(replay: Driver) -> None:
    leases = await replay.lease(3)
    size = leases[0].group_size
    await replay.insert_rewards(leases[0], *[1.0] * size)  # no variance
    await replay.insert_rewards(leases[1], 0.0, *[1.0] * (size - 1))
    await replay.insert_rewards(leases[2], *[None] * size)  # nothing was scored: filtered
    await replay.insert_rewards(leases[1], 0.0, *[1.0] * (size - 1))  # again: a duplicate counts once
    found = (await replay.store.ack([], version=1)).generated
    assert (found.groups, found.unvaried_groups) == (2, 1)
    assert found.reward_sums == {"exact_match": pytest.approx(2 * size - 1)}
    assert found.reward_counts == {"exact_match": 2 * size}


def test_what_came_since_is_a_difference_and_after_a_lost_buffer_all_that_there_is() -> None:
    old = Generated(groups=10, unvaried_groups=4, reward_sums={"r": 5.0}, reward_counts={"r": 20})
    new = Generated(groups=14, unvaried_groups=5, reward_sums={"r": 9.0}, reward_counts={"r": 28})
    assert new.since(old) == Generated(
        groups=4, unvaried_groups=1, reward_sums={"r": 4.0}, reward_counts={"r": 8}
    )
    assert new.since(old).reward_means == {"r": 0.5}
    assert new.since(old).unvaried_share == 0.25
    assert old.since(new) == old
