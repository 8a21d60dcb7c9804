"""The equations of the ledger hold under any interleaving of workers, learners, evaluations and crashes."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replay.driver import MadeUpPrompts, asking, completion, group, packed, run_config
from slipstream.algorithms.spec import AdaptiveGroup, Buckets, DynamicSampling, Goldilocks, Shaping
from slipstream.config import RunConfig
from slipstream.records import Completion, HandOut, InsertOutcome, Lease, Purpose, ReplayStats
from slipstream.replay.__main__ import connected, limits_of
from slipstream.replay.connection import Scripts
from slipstream.replay.curriculum import Curriculum
from slipstream.replay.evaluations import EvaluationStore
from slipstream.replay.selection import select
from slipstream.replay.store import ReplayStore
from slipstream.replay.summary import Summary, summarise
from slipstream.replay.values import Attached, Slot
from slipstream.rpc import codec, replay_codec
from slipstream.rpc.errors import Superseded
from slipstream.v1.packed_pb2 import PackedGroup

WORKER_MOVES = ("lease", "insert", "late insert", "bad insert", "return", "expire")
LEARNER_MOVES = ("sample", "ack", "release", "sample again", "late calls")
MOVES = WORKER_MOVES + LEARNER_MOVES
COMMON_MOVES = ("lease", "insert", "sample", "ack")
RARE_MOVES = ("checkpoint", "crash", "evaluate", "pause", "resume")
PROMPTS = MadeUpPrompts(distinct=6)
PLAIN = Shaping()
SHAPED = Shaping(
    dynamic_sampling=DynamicSampling(max_refills=2),
    goldilocks=Goldilocks(epsilon=0.3, reprobe_steps=2),
    buckets=Buckets(),
    adaptive_group=AdaptiveGroup(largest=6),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The batch that a learner got for the step after `version`."""

    hand_out: HandOut
    ids: tuple[str, ...]
    version: int


@dataclass(slots=True, kw_only=True)
class World:
    """The state of all clients, and a model of what has to hold."""

    store: ReplayStore
    curriculum: Curriculum
    evaluations: EvaluationStore
    config: RunConfig
    shaping: Shaping
    held: list[Slot] = field(default_factory=list)
    used: list[Slot] = field(default_factory=list)
    batches: list["Batch"] = field(default_factory=list)
    past: list["Batch"] = field(default_factory=list)
    learner_epoch: int = 0
    learner_id: str = ""
    hand_outs: int = 0
    version: int = 0
    newest: int = 0
    checkpoint: int = 0
    trained_at: dict[str, int] = field(default_factory=dict)
    accepted: Counter[str] = field(default_factory=Counter)
    sizes: dict[str, int] = field(default_factory=dict)
    announcements: int = 0
    paused: bool = False
    """Whether this world has paused admission; another may have."""

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
            "sample again": self._sample_again,
            "late calls": self._late_calls,
            "checkpoint": self._checkpoint,
            "crash": self._crash,
            "evaluate": self._evaluate,
            "pause": self._pause,
            "resume": self._resume,
        }

    async def _lease(self, random_: random.Random) -> None:
        prompts = random_.randint(1, 4)
        slots = await self.curriculum.lease(asking(prompts, serving=self.version))
        assert not self.paused or all(slot.purpose is Purpose.EVALUATION for slot in slots)
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
            chosen = select(PackedGroup.FromString(payload), {"exact_match": 1.0})
            await self.evaluations.insert(slot.group_id, slot.epoch, summary, chosen)
            return
        insertion = await self.store.insert(slot.group_id, slot.epoch, summary, payload)
        if insertion.outcome in (InsertOutcome.ACCEPTED, InsertOutcome.FILTERED):
            self.accepted[slot.group_id] += 1

    async def _return(self, random_: random.Random) -> None:
        if self.held:
            slot = _take(self.held, random_)
            self.used.append(slot)
            await self.store.return_leases("w", [(slot.group_id, slot.epoch)])

    async def _expire(self, random_: random.Random) -> None:
        await asyncio.sleep(0.002)
        await self.store.expire()

    async def _sample(self, random_: random.Random) -> None:
        per_step = self.config.learner.groups_per_step
        await self._take(per_step, self.version + len(self.batches))

    async def _take(self, groups: int, version: int) -> None:
        self.hand_outs += 1
        hand_out = HandOut(learner_epoch=self.learner_epoch, number=self.hand_outs)
        ids = await self.store.sample(groups, version=version, max_staleness=4, hand_out=hand_out)
        self.batches = [batch for batch in self.batches if batch.version != version]
        if ids:
            self.batches.append(Batch(hand_out=hand_out, ids=ids, version=version))
            self.past = [*self.past, self.batches[-1]][-20:]

    async def _sample_again(self, random_: random.Random) -> None:
        """Sample again for the step of a batch in flight, as after a broken stream."""
        if self.batches:
            await self._take(self.config.learner.groups_per_step, self.batches[-1].version)

    async def _late_calls(self, random_: random.Random) -> None:
        """Make delayed calls: the release of a broken stream, and an older request."""
        older = [batch for batch in self.past if batch not in self.batches]
        newest = HandOut(learner_epoch=self.learner_epoch, number=self.hand_outs)
        for batch in older[-3:]:
            assert await self.store.release(batch.ids, batch.hand_out) == 0
            if batch.hand_out != newest:
                with pytest.raises(Superseded):
                    await self.store.sample(
                        1, version=batch.version, max_staleness=4, hand_out=batch.hand_out
                    )
        await self.store.announce(self.version - 1, learner_epoch=self.learner_epoch)
        if self.learner_id:
            again = await self.store.attach(self.checkpoint, learner_id=self.learner_id)
            assert again == Attached(released=0, restored=0, learner_epoch=self.learner_epoch)

    async def _ack(self, random_: random.Random) -> None:
        if self.batches:
            batch = self.batches.pop(0)
            self.version += 1
            self.newest = max(self.newest, self.version)
            made = self.version
            acknowledgement = await self.store.ack(batch.ids, version=made, hand_out=batch.hand_out)
            assert (acknowledgement.acked, acknowledgement.retrained) == (len(batch.ids), 0)
            again = [i for i in batch.ids if i in self.trained_at]
            assert not again, f"trained twice: {again}"
            self.trained_at.update(dict.fromkeys(batch.ids, made))
            self.announcements += 1
            await self.store.announce(self.version, learner_epoch=self.learner_epoch)

    async def _release(self, random_: random.Random) -> None:
        if self.batches and random_.random() < 0.3:
            batch = self.batches.pop(0)
            assert await self.store.release(batch.ids, batch.hand_out) == len(batch.ids)

    async def _checkpoint(self, random_: random.Random) -> None:
        self.checkpoint = self.version
        await self.store.confirm_checkpoint(self.version, learner_epoch=self.learner_epoch)

    async def _crash(self, random_: random.Random) -> None:
        """The learner dies and continues from its last durable checkpoint."""
        self.version = self.checkpoint
        self.batches.clear()
        self.trained_at = {i: v for i, v in self.trained_at.items() if v <= self.checkpoint}
        self.announcements += 1
        self.learner_id = f"learner {self.learner_epoch + 1}"
        attached = await self.store.attach(self.checkpoint, learner_id=self.learner_id)
        self.learner_epoch, self.hand_outs = attached.learner_epoch, 0

    async def _evaluate(self, random_: random.Random) -> None:
        await self.evaluations.start(
            self.version,
            prompts=2,
            samples_per_prompt=2,
            reward="exact_match",
            learner_epoch=self.learner_epoch,
            request_id=f"request {random_.random()}",
        )

    async def _pause(self, random_: random.Random) -> None:
        await self._set_admission(paused=True)

    async def _resume(self, random_: random.Random) -> None:
        await self._set_admission(paused=False)

    async def _set_admission(self, *, paused: bool) -> None:
        admission, changed = await self.store.set_admission(paused=paused, by="anna", reason="")
        assert (admission.paused, changed) == (paused, paused != self.paused)
        self.paused = paused

    def check(self, stats: ReplayStats) -> None:
        """Check what has to hold at any moment."""
        ledger, limits = stats.ledger, limits_of(self.config)
        assert ledger.residual == 0, ledger
        assert max(self.accepted.values(), default=0) <= 1
        started = ledger.trained + ledger.buffered + ledger.in_flight + ledger.running
        # After a crash the version is lower than the one under which the running leases were admitted.
        assert started <= (limits.pipeline_depth + self.newest + 1) * limits.groups_per_step, stats
        free = (limits.pipeline_depth + stats.version + 1) * limits.groups_per_step - started
        assert stats.admission_free == (0 if stats.admission.paused else max(0, free))
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
    moves=st.lists(
        st.sampled_from((*MOVES, *RARE_MOVES, "resume", *(3 * COMMON_MOVES))), min_size=40, max_size=150
    ),
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
                assert stats.admission.paused == world.paused
                assert stats.ledger.trained == len(world.trained_at)
            training = {i: size for i, size in world.sizes.items() if i.startswith("g")}
            dispatched = int((await scripts.read_fields(["counters"], "dispatched"))[0] or 0)
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
        await worker.play(random_.choices(WORKER_MOVES, weights)[0], random_)


async def _learn(learner: World, workers: list[World], random_: random.Random) -> None:
    weights = (8, 6, 1, 1, 1, 0.5, 0.3, 0.3, 0.1, 0.5)
    for _ in range(500):
        await learner.play(random_.choices((*LEARNER_MOVES, *RARE_MOVES), weights)[0], random_)


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
    """Return rewards: all 0, all 1, or each at random."""
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
    made = group(replay_codec.lease_to_proto(lease), answers)
    return summarise(packed(made), {"exact_match": 1.0}), codec.group_to_proto(made).SerializeToString()
