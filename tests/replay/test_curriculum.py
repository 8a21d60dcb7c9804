"""The curriculum: pass rates are remembered, each prompt is decided on once, and skips are bounded."""

import asyncio
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replay.driver import ACCEPTED, FILTERED, Driver, asking, run_config, scenario, serving
from slipstream.algorithms.shaping import PassRate
from slipstream.algorithms.spec import (
    AdaptiveGroup,
    Buckets,
    Difficulty,
    DynamicSampling,
    Goldilocks,
    Shaping,
)
from slipstream.replay.curriculum import SKIPS_PER_PROMPT
from slipstream.v1 import replay_pb2 as pb

NEVER = Goldilocks(epsilon=0.0, reprobe_steps=100)
GOLDILOCKS = Shaping(goldilocks=NEVER)
ADAPTIVE = Shaping(adaptive_group=AdaptiveGroup(), difficulty=Difficulty(decay=1.0))


def indices(leases: Sequence[pb.Lease]) -> list[int]:
    return [lease.dispatch_index for lease in leases]


async def answer(replay: Driver, lease: pb.Lease, correct: int) -> int:
    """Insert a group with this many correct completions."""
    wrong = lease.group_size - correct
    return await replay.insert_rewards(lease, *[1.0] * correct, *[0.0] * wrong)


@scenario(depth=5, group_size=4, shaping=GOLDILOCKS, distinct=3)
async def test_a_prompt_that_is_too_easy_or_too_hard_is_skipped_and_its_index_is_used_up(
    replay: Driver,
) -> None:
    easy, hard, fine = await replay.lease(3)
    await answer(replay, easy, 4)
    await answer(replay, hard, 0)
    await answer(replay, fine, 2)
    # Indices 3, 6, 9 are the easy prompt again, 4, 7, 10 the hard one, 5, 8, 11 the one in between.
    again = await replay.lease(3)
    assert indices(again) == [5, 8, 11]
    ledger = await replay.ledger()
    assert (ledger.leased, ledger.inserted, ledger.running) == (6, 3, 3)
    assert (ledger.skipped, ledger.returned) == ({"goldilocks": 6}, 0)


@scenario(depth=0, per_step=4, group_size=4, shaping=GOLDILOCKS, distinct=2)
async def test_a_skipped_prompt_takes_no_slot(replay: Driver) -> None:
    easy, fine = await replay.lease(2)
    await answer(replay, easy, 4)
    await answer(replay, fine, 2)
    assert indices(await replay.lease(100)) == [3, 5]
    assert (await replay.stats()).admission_free == 0


@scenario(depth=0, per_step=4, group_size=4, shaping=GOLDILOCKS, distinct=1)
async def test_past_the_limit_of_skips_the_prompt_is_leased(replay: Driver) -> None:
    (only,) = await replay.lease()
    await answer(replay, only, 4)
    (again,) = await replay.lease()
    assert again.dispatch_index == 1 + SKIPS_PER_PROMPT
    assert (await replay.ledger()).skipped == {"goldilocks": SKIPS_PER_PROMPT}
    assert len(await replay.lease(2)) == 2
    assert (await replay.ledger()).skipped == {"goldilocks": 3 * SKIPS_PER_PROMPT}


@scenario(depth=9, group_size=4, shaping=GOLDILOCKS, distinct=1)
async def test_prompts_that_were_returned_are_not_decided_on_again(replay: Driver) -> None:
    first, second = await replay.lease(2)
    assert await answer(replay, first, 4) == ACCEPTED
    await replay.return_leases(second)
    (again,) = await replay.lease()
    assert (again.group_id, again.lease_epoch) == (second.group_id, 2)
    assert (await replay.ledger()).skipped == {}


@scenario(depth=9, group_size=4, lease_seconds=0.05, shaping=GOLDILOCKS, distinct=1)
async def test_a_lease_that_was_lost_before_its_decision_is_decided_on_later(
    replay: Driver,
) -> None:
    """A replica may die between the two scripts."""
    (first,) = await replay.lease()
    await answer(replay, first, 4)
    (lost,) = await replay.store.lease(asking(1))
    assert not lost.decided
    await asyncio.sleep(0.06)
    (again,) = await replay.lease()
    assert again.dispatch_index == 1 + SKIPS_PER_PROMPT
    ledger = await replay.ledger()
    assert (ledger.leased, ledger.expired, ledger.running) == (3, 1, 1)
    assert ledger.skipped == {"goldilocks": SKIPS_PER_PROMPT}


@scenario(
    depth=9, group_size=4, shaping=Shaping(goldilocks=Goldilocks(epsilon=0.0, reprobe_steps=2)), distinct=2
)
async def test_an_excluded_prompt_is_leased_again_after_reprobe_steps_versions(replay: Driver) -> None:
    await replay.announce(5)
    easy, fine = await replay.lease(2)
    await answer(replay, easy, 4)
    await answer(replay, fine, 2)
    await replay.announce(6)
    assert indices(await replay.lease()) == [3]
    await replay.announce(7)
    assert indices(await replay.lease()) == [4]


@scenario(
    depth=9,
    group_size=4,
    shaping=Shaping(goldilocks=NEVER, dynamic_sampling=DynamicSampling()),
    distinct=2,
)
async def test_filtered_groups_count_in_the_pass_rate(replay: Driver) -> None:
    easy, _ = await replay.lease(2)
    assert await answer(replay, easy, 4) == FILTERED
    assert indices(await replay.lease()) == [3]


@scenario(depth=9, group_size=4, shaping=Shaping(goldilocks=NEVER), distinct=2)
async def test_completions_without_a_score_do_not_count_in_the_pass_rate(replay: Driver) -> None:
    unscored, partly = await replay.lease(2)
    assert await replay.insert(unscored, reward=None) == FILTERED
    assert await replay.insert_rewards(partly, 1.0, 1.0, None, None) == ACCEPTED
    # The first prompt counts as unseen; the second was correct in two of two.
    assert indices(await replay.lease(2)) == [2, 4]


@scenario(
    depth=9,
    group_size=4,
    shaping=Shaping(buckets=Buckets(thresholds=(0.5,), weights=(0.0, 1.0))),
    distinct=2,
)
async def test_a_bucket_of_weight_0_is_not_leased(replay: Driver) -> None:
    hard, easy = await replay.lease(2)
    await answer(replay, hard, 0)
    await answer(replay, easy, 3)
    assert indices(await replay.lease(2)) == [3, 5]
    assert (await replay.ledger()).skipped == {"buckets": 2}


@scenario(
    depth=20, per_step=8, group_size=4, shaping=Shaping(buckets=Buckets(weights=(1.0, 1.0, 0.25))), distinct=1
)
async def test_a_bucket_is_leased_in_proportion_to_its_weight(replay: Driver) -> None:
    """A quarter of the turns: 40 prompts take about 160 indices; three standard deviations are 66."""
    (first,) = await replay.lease()
    await answer(replay, first, 4)
    last = (await replay.lease(40))[-1].dispatch_index
    assert 94 < last < 226


@scenario(depth=9, group_size=4, shaping=ADAPTIVE, distinct=3)
async def test_the_size_of_a_group_follows_the_pass_rate_and_stays_with_the_prompt(replay: Driver) -> None:
    """ceil(log 0.05 / log 0.5) = 5, ceil(log 0.05 / log 0.75) = 11; unseen prompts get group_size."""
    even, uneven, unseen = await replay.lease(3)
    assert [lease.group_size for lease in (even, uneven, unseen)] == [4, 4, 4]
    await answer(replay, even, 2)
    await answer(replay, uneven, 3)
    leases = await replay.lease(3)
    assert [lease.group_size for lease in leases] == [5, 11, 4]
    await replay.return_leases(*leases)
    await answer(replay, unseen, 2)
    again = await replay.lease(3)
    assert [lease.group_size for lease in again] == [5, 11, 4]
    for lease in again:
        assert await replay.insert(lease) == ACCEPTED
    batch = await replay.sample(6)
    assert [len(group.completions) for group in batch] == [4, 4, 4, 5, 11, 4]


@scenario(depth=9, group_size=4, shaping=ADAPTIVE, distinct=1)
async def test_a_group_of_another_size_than_decided_is_invalid(replay: Driver) -> None:
    (first,) = await replay.lease()
    await answer(replay, first, 2)
    (lease,) = await replay.lease()
    assert await replay.insert_rewards(lease, 1.0, 1.0, 0.0, 0.0) == FILTERED
    assert "it has 4 completions, and its lease asked for 5" in replay.log.stream.getvalue()


@scenario(depth=9, group_size=4, shaping=ADAPTIVE, distinct=1)
async def test_an_evaluation_keeps_its_own_number_of_samples(replay: Driver) -> None:
    (first,) = await replay.lease()
    await answer(replay, first, 2)
    await replay.start_evaluation(prompts=1, samples=3)
    evaluation, training = await replay.lease(2)
    assert (evaluation.purpose, evaluation.group_size) == (pb.PURPOSE_EVALUATION, 3)
    assert (training.purpose, training.group_size) == (pb.PURPOSE_TRAINING, 5)


def test_a_new_replica_remembers_pass_rates_and_sizes(redis_url: str) -> None:
    async def play() -> None:
        config = run_config(depth=9, group_size=4)
        async with serving(redis_url, config, shaping=ADAPTIVE, distinct=1) as first:
            (lease,) = await first.lease()
            await answer(first, lease, 2)
            (returned,) = await first.lease()
            await first.return_leases(returned)
        async with serving(redis_url, config, shaping=ADAPTIVE, distinct=1) as second:
            sizes = [lease.group_size for lease in await second.lease(2)]
            assert sizes == [5, 5]

    asyncio.run(play())


@scenario(depth=9, group_size=4)
async def test_pass_rates_are_remembered_only_if_the_run_needs_them(replay: Driver) -> None:
    (lease,) = await replay.lease()
    await answer(replay, lease, 2)
    assert await replay.scripts.read_hash("pass_rates") == {}


@settings(
    max_examples=10, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(decay=st.floats(0, 1), groups=st.lists(st.integers(0, 4), min_size=1, max_size=6))
def test_redis_stores_the_pass_rate_that_the_formula_gives(
    redis_url: str, decay: float, groups: list[int]
) -> None:
    async def play() -> None:
        shaping = Shaping(
            adaptive_group=AdaptiveGroup(smallest=4, largest=4), difficulty=Difficulty(decay=decay)
        )
        expected = PassRate()
        async with serving(
            redis_url, run_config(depth=9, group_size=4), shaping=shaping, distinct=1
        ) as replay:
            await replay.announce(3)
            for correct in groups:
                (lease,) = await replay.lease()
                await answer(replay, lease, correct)
                expected = expected.after(correct=correct, total=4, decay=decay)
            (stored,) = (await replay.scripts.read_hash("pass_rates")).values()
        right, total, seen = (float(part) for part in stored.split())
        assert (PassRate(correct=right, total=total), seen) == (expected, 3)

    asyncio.run(play())
