"""Actors and a client of the learner behind a network that loses and delays responses: no group is lost.

Actor (emulated engine) ─▶ proxy ─▶ replay (gRPC, Redis) ◀─ proxy ◀─ the learner's client
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from actor.fakes import FakePlaces, alone
from embedded_redis import embedded_redis
from faults.fault import NO_FAULT, Fault
from faults.tcp_proxy import tcp_proxy
from replay.driver import Driver, serving
from rollout.fakes import FakeVerifier, small_config
from slipstream.actor.environment import SingleTurn
from slipstream.actor.group_sampler import GroupSampler
from slipstream.actor.loop import Actor
from slipstream.actor.replay_client import ReplayClient
from slipstream.actor.verifier_client import VerifierClient
from slipstream.config import RunConfig
from slipstream.learner.clients import ReplayClient as LearnerReplayClient
from slipstream.learner.policy.tiny import make_tokenizer
from slipstream.records import Cursor, Sampling
from slipstream.rollout.emulated_engine import EmulatedEngine
from slipstream.rpc.channel import open_channel
from slipstream.rpc.server import start_server
from slipstream.served_version import ServedVersion
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import Tokens
from slipstream.v1.verifier_pb2_grpc import add_VerifierServicer_to_server

TOKENS = Tokens(make_tokenizer(max_tokens=32), context_tokens=32, max_new_tokens=4)
STEPS, GROUPS, ACTORS = 12, 8, 2
DELAY_SECONDS = 0.25
"""The delay in each direction; a round trip takes twice as long."""


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with embedded_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@dataclass(frozen=True, slots=True)
class Served:
    """The engine of a rollout, and the version that it serves."""

    engine: EmulatedEngine
    version: ServedVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The measurements of a run of STEPS steps."""

    seconds: float
    trained: Counter[str]
    lost_answers: int
    expired: int
    residual: int
    retired: int


def configured(run_dir: Path) -> RunConfig:
    return small_config(
        name=run_dir.name,
        run_dir=str(run_dir),
        learner={"groups_per_step": GROUPS, "steps": STEPS},
        staleness={"pipeline_depth": 2},
        rollout={
            "engine": "emulated",
            "group_size": 2,
            "max_groups": 8,
            "max_new_tokens": 4,
            "emulated": {"median_seconds": 0.2, "sigma": 0.3},
        },
        replay={},
        rpc={},
        verifier={},
    )


async def play(
    redis_url: str,
    run_dir: Path,
    *,
    depth: int = 2,
    fault: Fault = NO_FAULT,
) -> Played:
    """Run STEPS empty steps with actors and the client of a learner, and count the trained groups."""
    config = configured(run_dir)
    async with AsyncExitStack() as stack:
        replay = await stack.enter_async_context(serving(redis_url, config))
        verifier = await start_server(
            "127.0.0.1:0", lambda s: add_VerifierServicer_to_server(FakeVerifier(), s), config=config.rpc
        )
        scoring = await stack.enter_async_context(open_channel(verifier.address, config.rpc))
        network = [
            await stack.enter_async_context(tcp_proxy(replay.address, fault=fault, seed=seed))
            for seed in range(ACTORS + 1)
        ]
        channels = [
            await stack.enter_async_context(open_channel(between.address, config.rpc)) for between in network
        ]
        fleet = [Served(EmulatedEngine(config), ServedVersion()) for _ in range(ACTORS)]
        stop = asyncio.Event()
        actors = [
            asyncio.create_task(actor_of(f"w{i}", channels[i], scoring, served, config).run(stop))
            for i, served in enumerate(fleet)
        ]
        sweeping = asyncio.create_task(keep_sweeping(replay))
        began = time.monotonic()
        trained = await learn(LearnerReplayClient(channels[-1], config), fleet)
        seconds = time.monotonic() - began
        stop.set()
        await asyncio.gather(*actors)
        sweeping.cancel()
        stats = await replay.stats()
        await verifier.stop(grace=0)
        return Played(
            seconds=seconds,
            trained=trained,
            lost_answers=sum(between.lost for between in network),
            expired=stats.ledger.expired,
            residual=stats.residual,
            retired=sum(stats.ledger.retired.values()),
        )


async def learn(replay: LearnerReplayClient, fleet: Sequence[Served]) -> Counter[str]:
    """Run steps without computation; the next batch is fetched while the last one is acknowledged."""
    trained: Counter[str] = Counter()
    await replay.attach(0, Cursor())
    await serve(fleet, 0)
    fetching = asyncio.create_task(replay.sample(0))
    for version in range(1, STEPS + 1):
        while not (groups := await fetching):
            fetching = asyncio.create_task(replay.sample(version - 1))
        fetching = asyncio.create_task(replay.sample(version))
        trained.update(group.group_id for group in groups)
        await serve(fleet, version)
        await asyncio.gather(replay.ack(groups, version), replay.announce(version))
    fetching.cancel()
    return trained


async def serve(fleet: Sequence[Served], version: int) -> None:
    """Set the version on every rollout, without a transfer."""
    for member in fleet:
        await member.engine.commit(version)
        member.version.serve(version)


async def keep_sweeping(replay: Driver) -> None:
    while True:
        await replay.store.expire()
        await asyncio.sleep(1.0)


def actor_of(name: str, channel: Any, scoring: Any, member: Served, config: RunConfig) -> Actor:
    return Actor(
        sampler=GroupSampler(
            worker_id=name,
            environments=alone(SingleTurn(), max_tokens=4),
            tokens=TOKENS,
            scorer=VerifierClient(scoring, config.verifier, rewards=config.rewards),
            sampling=Sampling(temperature=1.0, max_tokens=4),
            metrics=Metrics(),
            log=Log(pod=name, level="error"),
        ),
        places=FakePlaces(member.engine, capacity=config.rollout.max_groups),
        replay=ReplayClient(channel, config.rpc, worker_id=name),
        served=member.version,
        max_groups=config.actor.max_groups,
        group_timeout_seconds=config.rollout.group_timeout_seconds,
        heartbeat_seconds=config.replay.heartbeat_seconds,
        metrics=Metrics(),
        log=Log(pod=name, level="error"),
    )


def run(redis_url: str, run_dir: Path, fault: Fault) -> Played:
    return asyncio.run(asyncio.wait_for(play(redis_url, run_dir, fault=fault), 60))


def assert_exact(played: Played) -> None:
    assert played.trained.total() == len(played.trained) == STEPS * GROUPS, "a group was trained twice"
    assert (played.residual, played.retired) == (0, 0)


def test_connections_that_are_cut_before_a_response_cost_little_time_and_no_group(
    redis_url: str, tmp_path: Path
) -> None:
    """A quarter of the responses is lost. A lost response with leases must not cost the time of a lease."""
    played = run(redis_url, tmp_path / "cut", Fault(cut_answers=0.25))
    assert_exact(played)
    assert played.lost_answers > 5
    assert played.seconds < 20


def test_half_open_connections_cost_seconds_and_no_group(redis_url: str, tmp_path: Path) -> None:
    """Requests arrive and responses are lost, and the connection stays open."""
    played = run(redis_url, tmp_path / "half-open", Fault(swallowed_answers=0.05))
    assert_exact(played)
    assert played.lost_answers > 0
    assert played.seconds < 30


def test_a_step_takes_one_network_delay_and_not_one_per_call(redis_url: str, tmp_path: Path) -> None:
    played = run(redis_url, tmp_path / "late", Fault(delay_seconds=DELAY_SECONDS))
    assert_exact(played)
    round_trips = played.seconds / (2 * DELAY_SECONDS)
    assert round_trips < 2.5 * STEPS
