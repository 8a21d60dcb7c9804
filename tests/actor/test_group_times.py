"""The times of a group's phases: in order, within the lease, and with the rollouts that sampled it."""

import asyncio
import time
from itertools import pairwise

from actor.fakes import FakePlaces
from actor.rollout_servers import fleet
from actor.test_actor import ids, start_actor
from rollout.fakes import FakeEngine, lease, scenario, until
from slipstream.actor.group_clock import GroupClock
from slipstream.records import GroupTimes
from slipstream.telemetry import clock

SLACK = 0.05


def moments(times: GroupTimes) -> list[float]:
    """Return the times of the phases in the order in which they must be."""
    firsts = [each.first_token for each in times.rollouts]
    return [times.leased, times.placed, *firsts, times.sampled, times.scored, times.inserted]


def in_order(times: GroupTimes) -> bool:
    return all(before <= after for before, after in pairwise(moments(times)))


@scenario
async def test_the_phases_are_in_order_and_between_lease_and_insertion() -> None:
    async with fleet() as actor, start_actor(rollouts=actor.rollouts) as rig:
        await actor.add(step_seconds=0.02)
        await until(lambda: actor.rollouts.capacity)
        began = time.time()
        rig.replay.leases.extend(lease(index) for index in range(3))
        await until(lambda: len(rig.replay.inserted) == 3)
        ended = time.time()
    for group in rig.replay.inserted:
        assert group.times is not None
        assert [each.rollout for each in group.times.rollouts] == ["rollout-0"]
        assert in_order(group.times)
        assert began - SLACK <= group.times.leased
        assert group.times.inserted <= ended + SLACK
        assert group.times.sampled - group.times.placed > 0.02 * 2, "several tokens of 20 ms"


@scenario
async def test_a_group_whose_rollout_died_names_both_rollouts_in_order() -> None:
    async with fleet() as actor, start_actor(rollouts=actor.rollouts) as rig:
        first = await actor.add(step_seconds=0.1)
        await until(lambda: actor.rollouts.capacity)
        rig.replay.leases.append(lease(0))
        await until(lambda: any(first.engine.running.values()))
        await asyncio.sleep(0.25)
        await actor.add(step_seconds=0.02)
        await first.kill()
        await until(lambda: rig.replay.inserted)
    (group,) = rig.replay.inserted
    assert group.times is not None
    assert [each.rollout for each in group.times.rollouts] == ["rollout-0", "rollout-1"]
    assert in_order(group.times)
    assert max(completion.engines for completion in group.completions) == 2


@scenario
async def test_the_wait_for_a_place_and_the_time_of_scoring_are_phases_of_their_own() -> None:
    engine = FakeEngine()
    places = FakePlaces(engine, capacity=1)
    async with start_actor([lease(0), lease(1)], rollouts=places) as rig:
        gate = engine.hold(ids(0))
        await until(lambda: engine.requests)
        places.capacity = 2  # a lease ahead of need, which waits for the only place
        places.on_change()
        await until(lambda: len(places.min_versions) == 2)
        await asyncio.sleep(0.2)
        gate.set()
        await until(lambda: len(rig.replay.inserted) == 2)
    first, second = sorted(rig.replay.inserted, key=lambda group: group.group_id)
    assert first.times is not None
    assert second.times is not None
    assert first.times.sampled - first.times.placed >= 0.2
    assert second.times.placed - second.times.leased >= 0.2
    assert second.times.placed >= first.times.sampled
    assert second.times.first_token is None, "this sampler tells of no tokens"


def test_a_correction_of_the_system_time_does_not_change_the_order(monkeypatch) -> None:
    group = GroupClock()
    group.place_given()
    group.tokens_came("a")
    now = time.time()
    monkeypatch.setattr(clock.time, "time", lambda: now - 3600.0)
    group.tokens_came("b")
    group.tokens_came("b")
    group.all_sampled()
    group.all_scored()
    times = group.times()
    assert in_order(times)
    assert [each.rollout for each in times.rollouts] == ["a", "b"]
    assert times.inserted - times.leased < 1.0
