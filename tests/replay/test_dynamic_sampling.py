"""Dynamic sampling: groups without variance are replaced, up to a limit, whatever their length."""

import asyncio
import heapq
from dataclasses import dataclass, field, replace
from random import Random
from statistics import fmean

from replay.driver import (
    ACCEPTED,
    DUPLICATE,
    FILTERED,
    Driver,
    MadeUpPrompts,
    asking,
    completion,
    packed,
    run_config,
    scenario,
)
from slipstream.algorithms.spec import DynamicSampling, Shaping
from slipstream.records import Completion, Group, HandOut, Outcome, Reward
from slipstream.replay.__main__ import connected, limits_of
from slipstream.replay.store import ReplayStore
from slipstream.replay.summary import summarise
from slipstream.replay.values import Slot

ON = Shaping(dynamic_sampling=DynamicSampling(max_refills=1))


@scenario(depth=0, per_step=4, shaping=ON)
async def test_a_group_without_variance_is_filtered_and_a_new_prompt_takes_its_place(replay: Driver) -> None:
    leases = await replay.lease(4)
    assert await replay.lease() == []
    assert await replay.insert_rewards(leases[0], 1.0, 1.0) == FILTERED
    assert await replay.insert_rewards(leases[1], 0.0, 0.0) == FILTERED
    assert await replay.insert_rewards(leases[2], 1.0, 0.0) == ACCEPTED
    assert [lease.dispatch_index for lease in await replay.lease(4)] == [4, 5]
    ledger = await replay.ledger()
    assert (ledger.filtered, ledger.buffered, ledger.tokens_inserted) == ({"zero_variance": 2}, 1, 18)
    assert await replay.stored_bytes(leases[0].group_id) is None
    assert await replay.insert_rewards(leases[0], 1.0, 0.0) == DUPLICATE


@scenario(depth=0, per_step=4)
async def test_without_dynamic_sampling_a_group_without_variance_is_kept(replay: Driver) -> None:
    (lease,) = await replay.lease()
    assert await replay.insert_rewards(lease, 1.0, 1.0) == ACCEPTED


@scenario(depth=0, per_step=2, group_size=3, shaping=ON)
async def test_variance_is_that_of_the_scored_completions(replay: Driver) -> None:
    first, second = await replay.lease(2)
    assert await replay.insert_rewards(first, 1.0, 1.0, None) == FILTERED
    assert await replay.insert_rewards(second, 1.0, 0.0, None) == ACCEPTED


@scenario(depth=0, per_step=2, group_size=3, shaping=ON)
async def test_rounding_is_not_variance(replay: Driver) -> None:
    (lease,) = await replay.lease()
    assert await replay.insert_rewards(lease, 0.1 * 3, 0.3, 0.1 + 0.2) == FILTERED


@scenario(depth=0, per_step=2, shaping=ON)
async def test_past_its_refills_a_version_keeps_every_group_and_the_next_version_filters_again(
    replay: Driver,
) -> None:
    """One refill of a batch of two: two groups are filtered, the third and fourth make the batch."""
    outcomes = []
    for _ in range(4):
        (lease,) = await replay.lease()
        outcomes.append(await replay.insert_rewards(lease, 1.0, 1.0))
    assert outcomes == [FILTERED, FILTERED, ACCEPTED, ACCEPTED]
    ledger = await replay.ledger()
    assert (ledger.filtered, ledger.refills_exhausted, ledger.buffered) == ({"zero_variance": 2}, 2, 2)
    await replay.train(2, version=1)
    await replay.announce(1)
    await replay.announce(1)
    (lease,) = await replay.lease()
    assert await replay.insert_rewards(lease, 1.0, 1.0) == FILTERED


@scenario(depth=0, per_step=2, shaping=ON)
async def test_announcing_the_same_version_again_gives_no_new_refills(replay: Driver) -> None:
    await replay.announce(1)
    for lease in await replay.lease(2):
        assert await replay.insert_rewards(lease, 0.0, 0.0) == FILTERED
    await replay.announce(1)
    (lease,) = await replay.lease()
    assert await replay.insert_rewards(lease, 0.0, 0.0) == ACCEPTED


@scenario(depth=0, per_step=2, shaping=ON)
async def test_attaching_a_learner_resets_the_refills(replay: Driver) -> None:
    for lease in await replay.lease(2):
        assert await replay.insert_rewards(lease, 0.0, 0.0) == FILTERED
    await replay.attach(0)
    (lease,) = await replay.lease()
    assert await replay.insert_rewards(lease, 0.0, 0.0) == FILTERED


def test_the_task_reward_is_the_weighted_sum_of_the_components() -> None:
    # 1 · 1 + 0.5 · 0 = 1 and 1 · 0 + 0.5 · 2 = 1; a component that the run does not name has weight 0.
    vectors = [("right", 1.0), ("short", 0.0)], [("right", 0.0), ("short", 2.0), ("other", 9.0)]
    answers = tuple(
        replace(
            completion(),
            rewards=tuple(Reward(name=n, value=v, outcome=Outcome.SCORE) for n, v in vector),
        )
        for vector in vectors
    )
    assert summarise(packed(_group(answers)), {"right": 1.0, "short": 0.5}).task_rewards == (1.0, 1.0)


@dataclass(slots=True)
class Course:
    """A simulated run: a group takes time in proportion to its length, and half of the groups have
    variance."""

    store: ReplayStore
    random: Random
    clock: float = 0.0
    version: int = 0
    running: list[tuple[float, str, Slot]] = field(default_factory=list)
    lengths: dict[str, float] = field(default_factory=dict)
    varied: set[str] = field(default_factory=set)
    trained: list[str] = field(default_factory=list)

    async def start(self) -> None:
        """Lease all prompts that admission allows."""
        for slot in await self.store.lease(asking(100, serving=self.version)):
            self.lengths[slot.group_id] = self.random.lognormvariate(3.0, 1.0)
            heapq.heappush(self.running, (self.clock + self.lengths[slot.group_id], slot.group_id, slot))

    async def finish(self) -> None:
        """Finish the group that is done first."""
        self.clock, group_id, slot = heapq.heappop(self.running)
        if self.random.random() < 0.5:
            self.varied.add(group_id)
        await _hand_in(self.store, slot, varied=group_id in self.varied)
        ledger = (await self.store.stats()).ledger
        assert ledger.trained + ledger.buffered == len(self.varied), "a finished group was discarded"

    async def step(self, groups: int) -> None:
        """Train on the oldest dispatches of the finished groups, if there are enough."""
        finished = sorted(self.varied - set(self.trained))
        hand_out = HandOut(learner_epoch=0, number=self.version + 1)
        if batch := await self.store.sample(
            groups, version=self.version, max_staleness=100, hand_out=hand_out
        ):
            assert list(batch) == finished[:groups], "not the oldest dispatches"
            self.version += 1
            await self.store.ack(batch, version=self.version, hand_out=hand_out)
            await self.store.announce(self.version, learner_epoch=0)
            self.trained += batch


def test_length_decides_neither_what_is_trained_on_nor_what_is_dropped(redis_url: str) -> None:
    """Training on the first to finish would leave the long ones over: the mean over the first batches is then
    too short for good. Here all with variance are trained on in the end, and both means are equal."""

    async def play() -> Course:
        config = run_config(depth=4, per_step=8)
        async with connected(redis_url, config) as scripts:
            shaping = Shaping(dynamic_sampling=DynamicSampling())
            course = Course(ReplayStore(scripts, replace(limits_of(config), shaping=shaping)), Random(7))
            while course.version < 20:
                await course.start()
                await course.finish()
                await course.step(8)
            while course.running:
                await course.finish()
            await course.step(len(course.varied) - len(course.trained))
            return course

    course = asyncio.run(asyncio.wait_for(play(), 60))
    assert len(course.varied) > 160
    assert len(course.lengths) > 1.5 * len(course.varied)
    assert sorted(course.trained) == sorted(course.varied)
    generated = fmean(course.lengths[i] for i in sorted(course.varied))
    assert fmean(course.lengths[i] for i in sorted(course.trained)) == generated


async def _hand_in(store: ReplayStore, slot: Slot, *, varied: bool) -> None:
    answers = tuple(completion(reward=float(varied and i == 0)) for i in range(slot.size))
    made = replace(_group(answers), group_id=slot.group_id, lease_epoch=slot.epoch)
    await store.insert(slot.group_id, slot.epoch, summarise(packed(made), {"exact_match": 1.0}), b"-")


def _group(answers: tuple[Completion, ...]) -> Group:
    return Group(
        group_id="g000000000",
        lease_epoch=1,
        dispatch_index=0,
        prompt=MadeUpPrompts().training(0),
        prompt_token_ids=(1,),
        completions=answers,
    )
