"""Groups of a mixture: leased by shares, counted by source, and gone on with exactly after a restart."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from replay.driver import ACCEPTED, FILTERED, Driver, completion, group, run_config, serving
from slipstream.config import RunConfig
from slipstream.prompts import make_source
from slipstream.records import Completion, Outcome, Reward
from slipstream.rpc import codec, replay_codec
from slipstream.v1 import replay_pb2 as pb

DATA = {
    "kind": "mixture",
    "of": [
        {"kind": "addition", "digits": 1, "name": "sums", "share": 3},
        {"kind": "sort_digits", "length": 3, "name": "sorting", "evaluation_reward": "sorted"},
    ],
}
REWARDS = [
    {"name": "exact_match"},
    {"name": "sorted", "kind": "custom", "function": "mine:sorted", "when": {"source": ["sorting"]}},
]


def mixed() -> RunConfig:
    """Return a run of the mixture, with keys of its own."""
    return run_config(per_step=20, data=DATA, rewards=REWARDS)


def scenario(test: Callable[[Driver], Awaitable[None]]) -> Callable[[str], None]:
    """Run a test with a replay service of the mixture; at the end the ledger must close."""

    def run(redis_url: str) -> None:
        asyncio.run(asyncio.wait_for(play(redis_url, mixed()), 60))

    async def play(redis_url: str, config: RunConfig) -> None:
        async with serving(redis_url, config, source=make_source(config.data, seed=0)) as driver:
            await test(driver)
            assert (await driver.stats()).residual == 0

    run.__name__ = getattr(test, "__name__", "scenario")
    return run


def answer(**values: float) -> Completion:
    """Return a completion with these rewards."""
    rewards = tuple(Reward(name=n, value=value, outcome=Outcome.SCORE) for n, value in values.items())
    return replace(completion(), rewards=rewards)


def of_source(leases: list[pb.Lease], name: str) -> list[pb.Lease]:
    return [lease for lease in leases if lease.prompt.source == name]


@scenario
async def test_leases_have_the_shares_of_their_sources(replay: Driver) -> None:
    leases = await replay.lease(40)
    assert Counter(lease.prompt.source for lease in leases) == {"sums": 30, "sorting": 10}


@scenario
async def test_a_prompt_that_comes_back_is_leased_again_from_the_same_source(replay: Driver) -> None:
    first = await replay.lease(8)
    await replay.return_leases(*first[1:6])
    again = await replay.lease(5)
    assert [lease.prompt for lease in again] == [lease.prompt for lease in first[1:6]]
    rest = await replay.lease(32)
    assert Counter(lease.prompt.source for lease in [*first, *rest]) == {"sums": 30, "sorting": 10}


@scenario
async def test_what_was_generated_is_counted_by_source_too(replay: Driver) -> None:
    leases = await replay.lease(8)
    sums, sorting = of_source(leases, "sums"), of_source(leases, "sorting")
    await replay.insert_completions(sums[0], [answer(exact_match=1.0), answer(exact_match=0.0)])
    await replay.insert_completions(sums[1], [answer(exact_match=1.0)] * 2)
    await replay.insert_completions(sorting[0], [answer(exact_match=0.0, sorted=0.5)] * 2)
    generated = replay_codec.generated_from_proto((await replay.acknowledge([], version=1)).generated)
    assert (generated.groups, generated.unvaried_groups) == (3, 2)
    assert generated.reward_means == {"exact_match": 0.5, "sorted": 0.5}
    assert {name: part.groups for name, part in generated.by_source.items()} == {"sorting": 1, "sums": 2}
    assert generated.by_source["sums"].reward_means == {"exact_match": 0.75}
    assert generated.by_source["sums"].unvaried_share == 0.5
    assert generated.by_source["sorting"].reward_means == {"exact_match": 0.0, "sorted": 0.5}


@scenario
async def test_a_group_of_a_source_that_the_run_does_not_have_is_invalid(replay: Driver) -> None:
    (lease,) = await replay.lease(1)
    message = codec.group_to_proto(group(lease, [answer(exact_match=1.0), answer(exact_match=0.0)]))
    message.prompt.source = "chess"
    response = await replay.insert_message(message)
    assert (response.outcome, response.filter_reason) == (FILTERED, "invalid")
    assert "of the source 'chess'; the run has: sorting, sums" in response.detail
    generated = (await replay.acknowledge([], version=1)).generated
    assert dict(generated.by_source) == {}


@scenario
async def test_an_evaluation_has_the_accuracy_of_each_source_by_the_reward_of_the_source(
    replay: Driver,
) -> None:
    name = await replay.start_evaluation(prompts=4, samples=2)
    leases = await replay.lease(4)
    assert {lease.purpose for lease in leases} == {pb.PURPOSE_EVALUATION}
    for lease in of_source(leases, "sums"):
        await replay.insert_completions(lease, [answer(exact_match=1.0), answer(exact_match=0.0)])
    (sorting,) = of_source(leases, "sorting")
    outcome = await replay.insert_completions(sorting, [answer(exact_match=0.0, sorted=1.0)] * 2)
    assert outcome == ACCEPTED
    evaluation = await replay.evaluation(name)
    assert evaluation.done
    assert evaluation.accuracy == pytest.approx((3 + 2) / 8)
    by_source = replay_codec.accuracies_from_proto(evaluation.by_source)
    assert {source: part.accuracy for source, part in by_source.items()} == {"sums": 0.5, "sorting": 1.0}
    assert {source: part.completions for source, part in by_source.items()} == {"sums": 6, "sorting": 2}


def test_after_a_restart_of_replay_each_source_goes_on_where_it_was(redis_url: str) -> None:
    async def leased(config: RunConfig, *numbers: int) -> list[str]:
        prompts: list[str] = []
        for number in numbers:  # each of these is another process of replay
            async with serving(redis_url, config, source=make_source(config.data, seed=0)) as replay:
                prompts += [lease.prompt.prompt_id for lease in await replay.lease(number)]
        return prompts

    one, several = mixed(), mixed()
    assert asyncio.run(leased(several, 7, 1, 22)) == asyncio.run(leased(one, 30))
