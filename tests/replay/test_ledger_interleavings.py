"""The ledger closes under any interleaving of workers, learners, evaluations, crashes and expiries."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replay.driver import MadeUpPrompts, asking, completion, group, run_config
from slipstream.algorithms.spec import AdaptiveGroup, Buckets, DynamicSampling, Goldilocks, Shaping
from slipstream.config import RunConfig
from slipstream.replay.__main__ import connected, limits_of
from slipstream.replay.connection import Scripts
from slipstream.replay.curriculum import Curriculum
from slipstream.replay.evaluations import EvaluationStore
from slipstream.replay.store import ReplayStore, Slot
from slipstream.replay.summary import Summary, summarise
from slipstream.rpc import codec
from slipstream.types import Completion, InsertOutcome, Lease, Purpose, ReplayStats

MOVES = ("lease", "insert", "late insert", "bad insert", "return", "expire", "sample", "ack", "release")
COMMON_MOVES = ("lease", "insert", "sample", "ack")
RARE_MOVES = ("checkpoint", "crash", "evaluate")
PROMPTS = MadeUpPrompts(distinct=6)
PLAIN = Shaping()
SHAPED = Shaping(
    dynamic_sampling=DynamicSampling(max_refills=2),
    goldilocks=Goldilocks(epsilon=0.3, reprobe_steps=2),
    buckets=Buckets(),
    adaptive_group=AdaptiveGroup(largest=6),
)


@dataclass(slots=True, kw_only=True)
class World:
    """Everything that clients remember, and the model of what must hold."""

    store: ReplayStore
    curriculum: Curriculum
    evaluations: EvaluationStore
    config: RunConfig
    shaping: Shaping
    held: list[Slot] = field(default_factory=list)
    used: list[Slot] = field(default_factory=list)
    batches: list[tuple[str, ...]] = field(default_factory=list)
    version: int = 0
    newest: int = 0
    checkpoint: int = 0
    trained_at: dict[str, int] = field(default_factory=dict)
    accepted: Counter[str] = field(default_factory=Counter)
    sizes: dict[str, int] = field(default_factory=dict)
    announcements: int = 0

    async def play(self, move: str, random_: random.Random) -> None:
        await self._moves()[move](random_)

    def _moves(self) -> dict[str, Callable[[random.Random], Awaitable[None]]]:
        return {
            "lease": self._lease,
            "insert": self._insert,
            "late insert": self._insert_again,
            "bad insert": self._insert_unscored,
            "return": self._return,
            "expire": self._expire,
            "sample": self._sample,
            "ack": self._ack,
            "release": self._release,
            "checkpoint": self._checkpoint,
            "crash": self._crash,
            "evaluate": self._evaluate,
        }

    async def _lease(self, random_: random.Random) -> None:
        prompts = random_.randint(1, 4)
        slots = await self.curriculum.lease(asking(prompts, serving=self.version))
        for slot in slots:
            assert self.sizes.setdefault(slot.group_id, slot.size) == slot.size, "a group changed its size"
        self.held += slots

    async def _insert(self, random_: random.Random) -> None:
        if self.held:
            slot = _take(self.held, random_)
            await self._hand_in(slot, rewards=_rewards(slot, random_), random_=random_)

    async def _insert_unscored(self, random_: random.Random) -> None:
        if self.held and random_.random() < 0.3:
            slot = _take(self.held, random_)
            await self._hand_in(slot, rewards=[None] * slot.size, random_=random_)

    async def _insert_again(self, random_: random.Random) -> None:
        if self.used:
            slot = random_.choice(self.used)
            await self._hand_in(slot, rewards=_rewards(slot, random_), random_=random_)

    async def _hand_in(self, slot: Slot, *, rewards: list[float | None], random_: random.Random) -> None:
        age = random_.choice((0, 0, 0, 1, 9))
        answers = [completion(version=max(0, self.version - age), reward=reward) for reward in rewards]
        summary, payload = _finished(slot, answers)
        self.used.append(slot)
        if slot.purpose is Purpose.EVALUATION:
            await self.evaluations.insert(slot.group_id, slot.epoch, summary)
            return
        found = await self.store.insert(slot.group_id, slot.epoch, summary, payload)
        if found.outcome in (InsertOutcome.ACCEPTED, InsertOutcome.FILTERED):
            self.accepted[slot.group_id] += 1

    async def _return(self, random_: random.Random) -> None:
        if self.held:
            slot = _take(self.held, random_)
            self.used.append(slot)
            await self.store.give_back("w", [(slot.group_id, slot.epoch)])

    async def _expire(self, random_: random.Random) -> None:
        await asyncio.sleep(0.002)
        await self.store.expire()

    async def _sample(self, random_: random.Random) -> None:
        per_step = self.config.learner.groups_per_step
        version = self.version + len(self.batches)
        batch = await self.store.sample(per_step, version=version, max_staleness=4)
        if (
            batch and batch not in self.batches
        ):  # after a release the next one may be given for this step again
            self.batches.append(batch)

    async def _ack(self, random_: random.Random) -> None:
        if self.batches:
            batch = self.batches.pop(0)
            self.version += 1
            self.newest = max(self.newest, self.version)
            made = self.version
            acked = (await self.store.ack(batch, version=made)).acked
            assert acked == len(batch)
            again = [i for i in batch if i in self.trained_at]
            assert not again, f"trained twice: {again}"
            self.trained_at.update(dict.fromkeys(batch, made))
            self.announcements += 1
            await self.store.announce(self.version)

    async def _release(self, random_: random.Random) -> None:
        if self.batches and random_.random() < 0.3:
            await self.store.release(self.batches.pop(0))

    async def _checkpoint(self, random_: random.Random) -> None:
        self.checkpoint = self.version
        await self.store.confirm_checkpoint(self.version)

    async def _crash(self, random_: random.Random) -> None:
        """The learner dies and continues from its last durable checkpoint."""
        self.version = self.checkpoint
        self.batches.clear()
        self.trained_at = {i: v for i, v in self.trained_at.items() if v <= self.checkpoint}
        self.announcements += 1
        await self.store.attach(self.checkpoint)

    async def _evaluate(self, random_: random.Random) -> None:
        await self.evaluations.start(self.version, prompts=2, samples_per_prompt=2, reward="exact_match")

    def check(self, stats: ReplayStats) -> None:
        """What must hold at any moment."""
        ledger, limits = stats.ledger, limits_of(self.config)
        assert ledger.residual == 0, ledger
        assert max(self.accepted.values(), default=0) <= 1
        started = ledger.trained + ledger.buffered + ledger.in_flight + ledger.running
        # After a crash the version is lower than the one that the work in the making was admitted under.
        assert started <= (limits.pipeline_depth + self.newest + 1) * limits.groups_per_step, stats
        free = (limits.pipeline_depth + stats.version + 1) * limits.groups_per_step - started
        assert stats.admission_free == max(0, free)
        if self.shaping.dynamic_sampling is None:
            assert not ledger.filtered.get("zero_variance")
            assert not ledger.skipped
        else:
            refills = self.shaping.dynamic_sampling.max_refills * limits.groups_per_step
            assert ledger.filtered.get("zero_variance", 0) <= refills * (self.announcements + 1)


@settings(
    max_examples=25, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    moves=st.lists(st.sampled_from(MOVES + RARE_MOVES + 3 * COMMON_MOVES), min_size=40, max_size=150),
    depth=st.integers(0, 2),
    seed=st.integers(0, 2**32),
    shaping=st.sampled_from((PLAIN, SHAPED)),
)
def test_the_ledger_closes_after_every_single_move(
    redis_url: str, moves: list[str], depth: int, seed: int, shaping: Shaping
) -> None:
    async def scenario() -> None:
        config = run_config(depth=depth, per_step=2, lease_seconds=0.01)
        async with connected(redis_url, config) as scripts:
            world = _world(scripts, config, shaping)
            random_ = random.Random(seed)
            for move in moves:
                await world.play(move, random_)
                stats = await world.store.stats()
                world.check(stats)
                assert stats.ledger.trained == len(world.trained_at)
            training = {i: size for i, size in world.sizes.items() if i.startswith("g")}
            dispatched = int(await scripts.read_field("counters", "dispatched") or 0)
            assert len(training) + sum(stats.ledger.skipped.values()) <= dispatched

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("shaping", [PLAIN, SHAPED], ids=["plain", "shaped"])
def test_the_ledger_closes_at_any_moment_under_concurrent_clients(
    redis_url: str, seed: int, shaping: Shaping
) -> None:
    """Thousands of moves by eight workers, one learner that crashes, and one observer, on two replicas."""

    async def scenario() -> None:
        config = run_config(depth=2, per_step=4, lease_seconds=0.05)
        async with connected(redis_url, config) as one, connected(redis_url, config) as two:
            learner, observed = _world(one, config, shaping), _world(two, config, shaping).store
            workers = [_world((one, two)[i % 2], config, shaping) for i in range(8)]
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_learn(learner, workers, random.Random(seed)))
                for number, worker in enumerate(workers):
                    tasks.create_task(_work(worker, learner, random.Random(f"{seed} {number}")))
                tasks.create_task(_observe(learner, observed))
            handed_in = sum((worker.accepted for worker in workers), Counter[str]())
            assert max(handed_in.values()) == 1, "a group was accepted twice"
            stats = await observed.stats()
            learner.check(stats)
            assert stats.ledger.trained == len(learner.trained_at) > 0
            assert stats.ledger.inserted == handed_in.total()
            shaped = stats.ledger.skipped and stats.ledger.filtered.get("zero_variance")
            assert bool(shaped) == (shaping is SHAPED), stats.ledger

    asyncio.run(asyncio.wait_for(scenario(), 60))


async def _work(worker: World, learner: World, random_: random.Random) -> None:
    weights = (4, 8, 1, 1, 1, 0.2)
    for _ in range(250):
        worker.version = learner.version
        await worker.play(random_.choices(MOVES[:6], weights)[0], random_)


async def _learn(learner: World, workers: list[World], random_: random.Random) -> None:
    weights = (8, 6, 1, 0.5, 0.3, 0.3)
    for _ in range(500):
        await learner.play(random_.choices((*MOVES[6:], *RARE_MOVES), weights)[0], random_)


async def _observe(learner: World, store: ReplayStore) -> None:
    for _ in range(200):
        stats = await store.stats()
        learner.check(stats)
        await asyncio.sleep(0.002)


def _world(scripts: Scripts, config: RunConfig, shaping: Shaping) -> World:
    store = ReplayStore(scripts, replace(limits_of(config), shaping=shaping))
    return World(
        store=store,
        curriculum=Curriculum(scripts, store, PROMPTS, shaping=shaping, seed=config.seed),
        evaluations=EvaluationStore(scripts),
        config=config,
        shaping=shaping,
    )


def _rewards(slot: Slot, random_: random.Random) -> list[float | None]:
    """All wrong, all right, or each by a toss of a coin."""
    chance = random_.choice((0.0, 1.0, 0.5))
    return [float(random_.random() < chance) for _ in range(slot.size)]


def _take(slots: list[Slot], random_: random.Random) -> Slot:
    return slots.pop(random_.randrange(len(slots)))


def _finished(slot: Slot, answers: list[Completion]) -> tuple[Summary, bytes]:
    lease = Lease(
        group_id=slot.group_id,
        lease_epoch=slot.epoch,
        dispatch_index=slot.index,
        prompt=PROMPTS.training(slot.index),
        group_size=slot.size,
        seconds=1.0,
    )
    made = group(codec.lease_to_proto(lease), answers)
    return summarise(made, {"exact_match": 1.0}), codec.group_to_proto(made).SerializeToString()
