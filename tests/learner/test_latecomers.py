"""A rollout that is late does not hold up the others, over real gRPC and real gloo groups."""

import asyncio
import time
from functools import partial

import pytest
from learner.fakes import said
from learner.worker import TIMEOUT, Learner, Worker, play, until
from slipstream.learner.broadcast.publisher import Published, catch_up
from slipstream.learner.policy.model import Policy
from slipstream.weights.base_copy import BaseCopy

PATIENCE = 1.0
LONG_PATIENCE = 4.0
DEADLINE = 60.0
"""Far above what any step of these tests takes, so that nothing here waits for it unnoticed."""

play_patiently = partial(play, timeout_seconds=DEADLINE, max_lag=2, patience_seconds=PATIENCE)


def left_out(learner: Learner) -> float:
    return learner.metrics.registry.get_sample_value("slipstream_rollouts_left_out_total") or 0.0


def with_base(name: str, *faults: str) -> Worker:
    return Worker(name, faults=faults, base=BaseCopy())


async def publishing_with(learner: Learner, joiner: Worker) -> asyncio.Task[Published]:
    """Let a rollout join another that serves a version; return the publication of the next version."""
    await learner.join(Worker("other"))
    await learner.publish(1)
    await learner.join(joiner)
    return asyncio.create_task(learner.publish(2))


@pytest.mark.parametrize("place", ["prepare", "begin", "commit"])
def test_the_others_serve_without_a_late_rollout_which_the_next_update_includes(
    policy: Policy, place: str
) -> None:
    async def scene(learner: Learner) -> None:
        late, other = with_base("late"), with_base("other")
        await learner.join(late, other)
        await learner.train(1, 0.02)
        late.faults.append(f"late_at_{place}")
        published = await learner.train(2, 0.02)
        assert published.rollouts == 1
        assert published.seconds < DEADLINE / 3
        assert (late.version, other.version) == (1, 2)
        assert left_out(learner) == 1
        assert f"rollout left out of an update rollout=late version=2 missing={named[place]}" in said(
            learner.log
        )
        late.go.set()
        published = await learner.train(3, 0.02)
        assert published.rollouts == 2
        assert learner.has(late)
        assert learner.has(other)
        assert late.bases[-1] != -1, "it gets what changed since the version that it keeps"
        assert {member.failures for member in learner.fleet.members()} == {0}

    named = {"prepare": "ready", "begin": "applied", "commit": "serving"}
    play_patiently(policy, scene)


def test_a_rollout_that_is_late_in_its_receipt_joins_a_new_group_with_the_next_update(policy: Policy) -> None:
    """Prepare ends its receipt, and with it its place in the group of that update."""

    async def scene(learner: Learner) -> None:
        late, other = with_base("late"), with_base("other")
        await learner.join(late, other)
        await learner.train(1, 0.02)
        late.faults.append("late_in_receipt")
        assert (await learner.train(2, 0.02)).rollouts == 1
        published = await learner.train(3, 0.02)
        assert published.rollouts == 2, said(learner.log)
        assert learner.has(late)
        assert learner.metrics.registry.get_sample_value("slipstream_publish_failures_total") == 0
        assert {member.failures for member in learner.fleet.members()} == {0}

    play_patiently(policy, scene)


def test_a_rollout_that_serves_late_counts_as_serving_when_it_does(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        late, other = Worker("late"), Worker("other")
        await learner.join(late, other)
        late.faults.append("late_at_commit")
        assert (await learner.publish(1)).rollouts == 1
        late.go.set()
        await until(lambda: {member.version for member in learner.fleet.members()} == {1})
        assert {member.missed_since for member in learner.fleet.members()} == {None}
        before = late.events.count("prepare")
        await learner.publisher.publish(1)
        assert late.events.count("prepare") == before, "it has the version"

    play_patiently(policy, scene)


def test_a_group_is_formed_without_a_rollout_that_does_not_come(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        workers = [Worker("late", faults=("late_at_prepare",)), *(Worker(f"w{n}") for n in range(3))]
        await learner.join(*workers)
        published = await learner.publish(1)
        assert published.rollouts == 3
        assert published.seconds < DEADLINE / 3
        assert [worker.version for worker in workers] == [-1, 1, 1, 1]
        workers[0].go.set()
        assert (await learner.publish(2)).rollouts == 4
        assert all(learner.has(worker) for worker in workers)
        assert {member.failures for member in learner.fleet.members()} == {0}

    play_patiently(policy, scene)


def test_a_rollout_may_miss_max_lag_versions_and_is_waited_for_then(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        silent, other = Worker("silent"), Worker("other")
        await learner.join(silent, other)
        silent.faults += ["silent_at_prepare"] * 3
        for version in (1, 2):
            assert (await learner.publish(version)).rollouts == 1
        assert len(learner.fleet.members()) == 2
        began = time.monotonic()
        assert (await learner.publish(3)).rollouts == 1
        assert time.monotonic() - began >= TIMEOUT, "the deadline drops it"
        assert [member.worker_id for member in learner.fleet.members()] == ["other"]
        assert left_out(learner) == 2

    play_patiently(policy, scene, timeout_seconds=TIMEOUT)


def test_versions_count_only_if_they_were_missed_in_a_row(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        moody, other = Worker("moody"), Worker("other")
        await learner.join(moody, other)
        for version in range(1, 7):
            if version % 2:
                moody.faults.append("silent_at_prepare")
            assert (await learner.publish(version)).rollouts == 2 - version % 2
        assert left_out(learner) == 3

    play_patiently(policy, scene, max_lag=1)


def test_with_max_lag_0_every_update_waits_for_all(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        late, other = Worker("late", faults=("late_at_prepare",)), Worker("other")
        await learner.join(late, other)
        publishing = asyncio.create_task(learner.publish(1))
        await asyncio.sleep(3 * PATIENCE)
        assert not publishing.done()
        late.go.set()
        assert (await publishing).rollouts == 2
        assert left_out(learner) == 0

    play_patiently(policy, scene, max_lag=0)


def test_a_late_joiner_does_not_hold_up_the_next_version(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        early, joiner = Worker("early"), Worker("joiner", faults=("late_at_prepare",))
        await learner.join(early)
        await learner.publish(1)
        catching_up = asyncio.create_task(catch_up(learner.publisher, learner.fleet, learner.weights))
        await learner.join(joiner)
        await until(lambda: joiner.events.count("prepare") == 1)
        assert (await learner.publish(2, seconds=DEADLINE / 3)).rollouts == 1
        joiner.go.set()
        assert (await learner.publish(3)).rollouts == 2
        assert learner.has(joiner)
        catching_up.cancel()

    play_patiently(policy, scene)


@pytest.mark.parametrize("deaf", [False, True], ids=["beside_the_weights", "in_a_pause"])
@pytest.mark.parametrize("position", range(6))
def test_a_rollout_that_stops_in_a_broadcast_is_left_out_and_the_others_get_the_version(
    policy: Policy, position: int, deaf: bool
) -> None:
    async def scene(learner: Learner) -> None:
        workers = [Worker(f"w{number}") for number in range(6)]
        for worker in workers:
            worker.deaf = deaf
        await learner.join(*workers)
        assert (await learner.publish(1)).rollouts == 6
        stopped = workers[position]
        stopped.faults.append("stuck_in_the_middle")
        published = await learner.publish(2)
        print(said(learner.log), [(w.name, w.events) for w in workers])
        assert published.seconds < DEADLINE / 4
        assert published.rollouts == 5
        assert [worker.version for worker in workers if worker is not stopped] == [2] * 5
        assert {m.failures for m in learner.fleet.members() if m.worker_id != stopped.name} == {0}
        stopped.released.set()
        assert (await learner.publish(3)).rollouts == 6
        assert all(learner.has(worker) for worker in workers)

    play_patiently(policy, scene)


@pytest.mark.parametrize("step", range(4))
def test_a_rollout_that_stops_in_the_forming_of_a_group_is_left_out_and_the_others_get_the_version(
    policy: Policy, step: int
) -> None:
    async def scene(learner: Learner) -> None:
        workers = [Worker(f"w{number}") for number in range(4)]
        stopped, joiner = workers[1], Worker("joiner")
        await learner.join(*workers)
        assert (await learner.publish(1)).rollouts == 4
        stopped.faults.append(f"stuck_in_forming_{step}")
        await learner.join(joiner)  # a new group is formed
        published = await learner.publish(2)
        assert published.seconds < DEADLINE / 4
        assert published.rollouts == 4
        assert [w.version for w in (*workers, joiner)] == [2, 1, 2, 2, 2], said(learner.log)
        assert {m.failures for m in learner.fleet.members() if m.worker_id != stopped.name} == {0}
        stopped.released.set()
        assert (await learner.publish(3)).rollouts == 5
        assert all(learner.has(worker) for worker in workers)

    play_patiently(policy, scene)


PLACES = ("late_at_prepare", "stuck_in_forming_2", "stuck_in_the_middle", "late_at_begin", "late_at_commit")


@pytest.mark.parametrize("place", PLACES)
def test_a_rollout_that_answers_no_ping_is_left_out_before_the_patience_ends(
    policy: Policy, place: str
) -> None:
    """Also in the first update of a learner, before which no step had a pace."""

    async def scene(learner: Learner) -> None:
        silent = Worker("silent", faults=(place,))
        silent.mute = True
        others = [Worker(f"other-{number}") for number in range(2)]
        await learner.join(silent, *others)
        published = await learner.publish(1)
        assert published.rollouts == 2
        assert published.seconds < LONG_PATIENCE, said(learner.log)
        assert [other.version for other in others] == [1, 1]
        assert left_out(learner) == 1
        silent.released.set()
        silent.go.set()
        assert (await learner.publish(2)).rollouts == 3
        assert learner.has(silent)
        assert {member.failures for member in learner.fleet.members()} == {0}

    play_patiently(policy, scene, patience_seconds=LONG_PATIENCE)


def test_a_rollout_that_answers_no_ping_and_may_not_be_left_out_is_waited_for(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        silent = Worker("silent", faults=("stuck_in_the_middle",))
        silent.mute = True
        await learner.join(silent, Worker("other"))
        publishing = asyncio.create_task(learner.publish(1))
        await asyncio.sleep(3 * PATIENCE)
        assert not publishing.done()
        silent.released.set()
        silent.go.set()
        assert (await publishing).rollouts == 2
        assert "silent=silent" not in said(learner.log)
        assert left_out(learner) == 0

    play_patiently(policy, scene, max_lag=0)


def test_a_group_waits_for_a_rollout_that_may_not_be_left_out_and_comes_late(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        late = Worker("late", faults=("late_at_prepare",))
        publishing = await publishing_with(learner, late)
        await asyncio.sleep(4 * PATIENCE)
        late.go.set()
        assert (await publishing).rollouts == 2
        assert "stands still" not in said(learner.log)
        assert learner.metrics.registry.get_sample_value("slipstream_publish_failures_total") == 0

    play_patiently(policy, scene, max_lag=0)


def test_a_rollout_that_is_ready_only_after_its_group_was_left_gets_the_version_in_a_new_one(
    policy: Policy,
) -> None:
    async def scene(learner: Learner) -> None:
        slow = Worker("slow", faults=("late_after_forming",))
        publishing = await publishing_with(learner, slow)
        await until(lambda: "an update stands still during=forming" in said(learner.log))
        slow.go.set()
        assert (await publishing).rollouts == 2
        assert "a member failed before the broadcast" not in said(learner.log)
        assert {member.failures for member in learner.fleet.members()} == {0}

    play_patiently(policy, scene)


def test_rollouts_that_stop_one_after_the_other_in_one_publication_are_left_out(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        workers = [Worker(f"w{number}") for number in range(5)]
        await learner.join(*workers)
        assert (await learner.publish(1)).rollouts == 5
        workers[0].faults.append("stuck_in_the_middle")
        workers[1].faults.append("stuck_in_forming_2")  # of the group without the first one
        workers[2].faults.append("stuck_in_epoch_3")  # the group without both of them
        published = await learner.publish(2, seconds=DEADLINE)
        assert published.seconds < DEADLINE / 2
        assert [worker.version for worker in workers] == [1, 1, 1, 2, 2], said(learner.log)
        assert said(learner.log).count("an update stands still") == 3
        for worker in workers:
            worker.released.set()
        assert (await learner.publish(3)).rollouts == 5
        assert all(learner.has(worker) for worker in workers)

    play_patiently(policy, scene)


@pytest.mark.parametrize("seed", range(3))
def test_three_failing_rollouts_of_sixteen_delay_the_others_by_less_than_a_deadline(
    policy: Policy, seed: int
) -> None:
    async def scene(learner: Learner) -> None:
        workers = [with_base(f"w{number:02}") for number in range(16)]
        await learner.join(*workers)
        assert (await learner.train(1, 0.02)).rollouts == 16
        failing = [workers[(5 * seed + 3 * number) % 16] for number in range(3)]
        for worker, fault in zip(failing, faults[seed], strict=True):
            worker.faults.append(fault)
        for version in (2, 3):
            published = await learner.train(version, 0.02)
            assert published.seconds < DEADLINE / 2
            served = [worker for worker in workers if worker not in failing]
            assert [worker.name for worker in served if not learner.has(worker)] == [], said(learner.log)
            assert {worker.version for worker in served} == {version}
        for worker in failing:
            worker.go.set()

    faults = [
        ("late_at_prepare", "die_at_prepare", "late_at_commit"),
        ("late_at_begin", "die_at_begin", "damaged"),
        ("die_at_commit", "late_at_begin", "late_at_prepare"),
    ]
    play_patiently(policy, scene, patience_seconds=4.0)
