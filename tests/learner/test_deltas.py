"""Rollouts that keep the last version get the changed elements only, over real gRPC and real gloo groups."""

import asyncio

import pytest
from learner.worker import Learner, Worker, play, until
from slipstream.learner.broadcast.publisher import catch_up
from slipstream.learner.policy.model import Policy
from slipstream.weights.base_copy import BaseCopy
from slipstream.weights.changes import MOST_VERSIONS
from slipstream.weights.delta import bits

SHARE = 0.02
FULL = -1


def keeping(name: str, **options: object) -> Worker:
    return Worker(name, base=BaseCopy(), **options)  # type: ignore[arg-type]


async def gone(learner: Learner, stay: asyncio.Task[None]) -> None:
    """End the stay of a rollout, so that `steady` is the only member."""
    stay.cancel()
    await until(lambda: [m.worker_id for m in learner.fleet.members()] == ["steady"])


def value(learner: Learner, name: str, **labels: str) -> float:
    return learner.metrics.registry.get_sample_value(f"slipstream_{name}", labels) or 0.0


def test_after_the_first_version_only_changed_elements_are_sent(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        a, b = keeping("a"), keeping("b")
        await learner.join(a, b)
        await learner.train(1, SHARE)
        full = value(learner, "publish_bytes_total")
        for version in (2, 3, 4):
            published = await learner.train(version, SHARE)
            assert learner.has(a)
            assert learner.has(b)
            assert published.changed == pytest.approx(SHARE, rel=0.2)
            assert 0 < published.sent_bytes < 0.1 * full
        assert a.bases == b.bases == [FULL, 1, 2, 3]
        assert a.epochs == [learner.fleet.epoch]
        assert value(learner, "updates_sent_total", kind="full") == 1
        assert value(learner, "updates_sent_total", kind="delta") == 3
        assert value(learner, "publish_bytes_total") - full < 0.15 * full

    play(policy, scene)


def test_a_rollout_that_keeps_nothing_gets_full_versions_after_the_others_got_their_changes(
    policy: Policy,
) -> None:
    async def scene(learner: Learner) -> None:
        a, b = keeping("a"), Worker("b")
        await learner.join(a, b)
        for version in (1, 2, 3):
            assert (await learner.train(version, SHARE)).rollouts == 2
            assert learner.has(a)
            assert learner.has(b)
        assert a.bases == [FULL, 1, 2]
        assert b.bases == [FULL, FULL, FULL]
        assert a.epochs == [1, 2, 4, 5]
        assert b.epochs == [1, 3, 4, 6], "in epochs 1 and 4 the learner found that it keeps nothing"

    play(policy, scene)


def test_a_rollout_that_lost_its_base_does_not_cost_the_others_theirs(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        a, b, c = keeping("a"), keeping("b"), keeping("c")
        await learner.join(a, b, c)
        await learner.train(1, SHARE)
        assert b.base is not None
        b.base.forget()
        for version in (2, 3, 4):
            assert (await learner.train(version, SHARE)).rollouts == 3
            assert all(learner.has(worker) for worker in (a, b, c))
        assert a.bases == c.bases == [FULL, 1, 2, 3]
        assert b.bases == [FULL, FULL, 2, 3]
        assert a.epochs[-1] == b.epochs[-1], "all are in one group again"

    play(policy, scene)


def test_a_joiner_in_a_publication_gets_the_full_version_after_the_others_got_their_changes(
    policy: Policy,
) -> None:
    async def scene(learner: Learner) -> None:
        early, late = keeping("early"), keeping("late")
        await learner.join(early)
        for version in (1, 2):
            await learner.train(version, SHARE)
        await learner.join(late)
        assert (await learner.train(3, SHARE)).rollouts == 2
        assert learner.has(early)
        assert learner.has(late)
        assert early.bases == [FULL, 1, 2]
        assert early.epochs == [1], "its group has not changed"
        assert late.bases == [FULL]
        await learner.train(4, SHARE)
        assert (early.bases, late.bases) == ([FULL, 1, 2, 3], [FULL, 3])
        assert early.epochs[-1] == late.epochs[-1]

    play(policy, scene)


def test_rollouts_that_come_back_or_join_between_two_versions_get_what_they_lack(policy: Policy) -> None:
    """The version is published again, so nothing has changed since the last publication."""

    async def scene(learner: Learner) -> None:
        away, steady, new = keeping("away", serving_version=1), keeping("steady"), keeping("new")
        (stay, _) = await learner.join(away, steady)
        await learner.train(1, SHARE)
        await gone(learner, stay)
        await learner.train(2, SHARE)
        await learner.join(away, new)
        async with learner.weights:
            assert (await asyncio.wait_for(learner.publisher.publish(2), 10)).rollouts == 3
        assert away.bases == [FULL, 1]
        assert new.bases == [FULL]
        assert all(learner.has(worker) for worker in (away, steady, new))
        assert learner.fleet.epoch == 4

    play(policy, scene)


def test_a_rollout_that_keeps_a_base_and_serves_nothing_gets_a_delta_before_new_ones(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        paused, steady, new = keeping("paused"), keeping("steady"), keeping("new")
        (stay, _) = await learner.join(paused, steady)
        await learner.train(1, SHARE)
        await gone(learner, stay)
        await learner.join(paused, new)
        assert (await learner.train(2, SHARE)).rollouts == 3
        assert paused.bases == [FULL, 1]
        assert new.bases == [FULL]
        assert all(learner.has(worker) for worker in (paused, steady, new))
        assert learner.fleet.epoch <= 5

    play(policy, scene)


def test_a_late_rollout_and_a_new_one_are_both_caught_up(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        late, steady, new = keeping("late"), keeping("steady"), keeping("new")
        await learner.join(late, steady)
        await learner.train(1, SHARE)
        late.faults.append("late_at_prepare")
        assert (await learner.train(2, SHARE)).rollouts == 1
        late.go.set()
        learner.fleet.joined.clear()
        catching_up = asyncio.create_task(catch_up(learner.publisher, learner.fleet, learner.weights))
        await learner.join(new)
        await new.events.wait_for("serving 2")
        await late.events.wait_for("serving 2")
        assert late.bases == [FULL, 1]
        assert learner.has(late)
        assert learner.has(new)
        catching_up.cancel()

    play(policy, scene, max_lag=2, timeout_seconds=20.0, patience_seconds=5.0)


def test_a_base_that_is_too_old_for_a_delta_does_not_cost_the_others_theirs(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        away, steady = keeping("away", serving_version=1), keeping("steady")
        (stay, _) = await learner.join(away, steady)
        await learner.train(1, SHARE)
        await gone(learner, stay)
        last = MOST_VERSIONS + 3
        for version in range(2, last):
            await learner.train(version, SHARE / 10)
        await learner.join(away)
        assert (await learner.train(last, SHARE / 10)).rollouts == 2
        assert away.bases == [FULL, FULL]
        assert steady.bases == [FULL, *range(1, last)]
        assert learner.has(away)
        assert learner.has(steady)

    play(policy, scene)


def test_without_bases_a_joiner_shares_the_full_version_of_the_others(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        a, b = Worker("a"), Worker("b")
        await learner.join(a)
        await learner.train(1, SHARE)
        await learner.join(b)
        await learner.train(2, SHARE)
        assert a.epochs[-1] == b.epochs[-1]
        assert value(learner, "updates_sent_total", kind="full") == 2

    play(policy, scene)


def test_all_rollouts_get_the_full_version_together_if_there_is_no_delta(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        a, b = keeping("a"), keeping("b")
        await learner.join(a, b)
        await learner.train(1, SHARE)
        assert b.base is not None
        b.base.forget()
        await learner.train(2, 0.9)
        assert a.bases == b.bases == [FULL, FULL]
        assert a.epochs == [1]

    play(policy, scene)


def test_a_step_that_changes_most_elements_is_sent_in_full(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        worker = keeping("a")
        await learner.join(worker)
        for version, share in ((1, 1.0), (2, SHARE), (3, 0.9), (4, SHARE)):
            await learner.train(version, share)
            assert learner.has(worker)
        assert worker.bases == [FULL, 1, FULL, 3]

    play(policy, scene)


def test_a_joiner_gets_the_full_version_alone_and_then_deltas_like_the_others(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        early, late = keeping("early"), keeping("late")
        await learner.join(early)
        await learner.train(1, SHARE)
        catching_up = asyncio.create_task(catch_up(learner.publisher, learner.fleet, learner.weights))
        await learner.join(late)
        await late.events.wait_for("serving 1")
        await until(lambda: not learner.weights.locked())
        await learner.train(2, SHARE)
        assert early.bases == late.bases == [FULL, 1]
        assert learner.has(early)
        assert learner.has(late)
        catching_up.cancel()

    play(policy, scene)


def test_a_rollout_that_was_away_for_some_versions_gets_what_changed_since(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        away, steady = keeping("away", serving_version=1), keeping("steady")
        (stay, _) = await learner.join(away, steady)
        await learner.train(1, SHARE)
        await gone(learner, stay)
        for version in (2, 3):
            await learner.train(version, SHARE)
        await learner.join(away)
        await learner.train(4, SHARE)
        assert away.bases == [FULL, 1]
        assert steady.bases == [FULL, 1, 2, 1], "one delta serves both"
        assert learner.has(away)
        assert learner.has(steady)

    play(policy, scene)


def test_a_rollout_that_dies_in_the_middle_does_not_cost_the_others_their_base(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        survivor, mortal = keeping("survivor"), keeping("mortal")
        await learner.join(survivor, mortal)
        await learner.train(1, SHARE)
        mortal.faults.append("die_at_begin")
        await learner.train(2, SHARE)
        assert survivor.bases[0] == FULL
        assert FULL not in survivor.bases[1:]
        assert learner.has(survivor)

    play(policy, scene)


def test_a_rollout_with_other_bytes_refuses_the_delta_and_gets_the_full_version(policy: Policy) -> None:
    async def scene(learner: Learner) -> None:
        wrong, right = keeping("wrong"), keeping("right")
        await learner.join(wrong, right)
        await learner.train(1, SHARE)
        assert wrong.base is not None
        bits(next(iter(wrong.base.tensors.values())))[0] ^= 1
        await learner.train(2, SHARE)
        assert wrong.bases == [FULL, 1, FULL]
        assert learner.has(wrong)
        assert learner.has(right)

    play(policy, scene)


def test_the_base_of_an_earlier_learner_is_not_believed(policy: Policy) -> None:
    worker = keeping("a")

    async def scene(learner: Learner) -> None:
        await learner.join(worker)
        for version in (1, 2):
            await learner.train(version, SHARE)
            assert learner.has(worker)

    play(policy, scene)
    play(policy, scene)
    assert worker.bases == [FULL, 1, FULL, 1]


def test_encrypted_updates_have_a_key_of_their_own_each(policy: Policy) -> None:
    worker = keeping("a")

    async def scene(learner: Learner) -> None:
        await learner.join(worker)
        for version in (1, 2, 3):
            await learner.train(version, SHARE)
            assert learner.has(worker)

    play(policy, scene, encrypt=True)
    assert worker.bases == [FULL, 1, 2]
    assert len({len(key) for key in worker.keys}) == 1
    assert len(set(worker.keys)) == 3
