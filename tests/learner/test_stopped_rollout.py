"""A real rollout that is stopped, and a real actor that is killed: the others go on without them."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from learner.worker import Learner, Worker, learner_of
from replay.driver import Driver, run_config, serving
from slipstream.learner.broadcast.publisher import catch_up
from slipstream.learner.policy.model import Policy
from slipstream.rpc.server import GONE_SECONDS, SILENT_SECONDS
from slipstream.weights.manifest import model_fingerprint

START_SECONDS = 90.0
SLACK_SECONDS = 4.0
"""Of a busy machine."""
WEIGHTS_SECONDS = 60.0
LEASE_SECONDS = 2.0
NAME, ACTOR = "real", "actor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A learner and a replay in this process, and a rollout and an actor as processes that end no group."""

    learner: Learner
    replay: Driver
    rollout: subprocess.Popen[bytes]
    actor: subprocess.Popen[bytes]

    async def until_member(self, version: int, *, seconds: float = START_SECONDS) -> None:
        """Return once the rollout serves a version."""
        async with asyncio.timeout(seconds):
            while (NAME, version) not in [(m.worker_id, m.version) for m in self.learner.fleet.members()]:
                assert self.rollout.poll() is None, "the rollout ended"
                await asyncio.sleep(0.02)

    async def until_ledger(self, name: str, least: int, *, seconds: float) -> float:
        """Seconds until a counter of the ledger has grown to `least`."""
        began = time.monotonic()
        async with asyncio.timeout(seconds):
            while getattr(await self.replay.ledger(), name) < least:
                await self.replay.store.expire()
                await asyncio.sleep(0.1)
        return time.monotonic() - began


@asynccontextmanager
async def scene(policy: Policy, model: Path, redis_url: str, directory: Path) -> AsyncIterator[Scene]:
    fingerprint = model_fingerprint(model)
    config = run_config(depth=0, per_step=2, lease_seconds=LEASE_SECONDS)
    async with (
        learner_of(policy, WEIGHTS_SECONDS, fingerprint=fingerprint) as learner,
        serving(redis_url, config) as replay,
    ):
        learner.fleet.version = 1
        catching_up = asyncio.create_task(catch_up(learner.publisher, learner.fleet, learner.weights))
        config_file = configured(directory, model, learner.address, replay.address)
        with pod("rollout", NAME, config_file) as rollout, pod("actor", ACTOR, config_file) as actor:
            made = Scene(learner=learner, replay=replay, rollout=rollout, actor=actor)
            try:
                await made.until_member(1)
                yield made
            finally:
                catching_up.cancel()
                rollout.kill()


def configured(directory: Path, model: Path, learner: str, replay: str) -> Path:
    """Write the configuration of a run whose emulated answers take an hour; return its file."""
    config = directory / "run.yaml"
    run = {
        "name": "stopped",
        "model": {"path": str(model)},
        "rollout": {"engine": "emulated", "group_size": 2, "emulated": {"median_seconds": 3600, "sigma": 0}},
        "replay": {"lease_seconds": LEASE_SECONDS, "address": replay},
        "learner": {"address": learner},
        "verifier": {"address": "127.0.0.1:9"},
    }
    config.write_text(yaml.safe_dump(run), encoding="utf-8")
    return config


@contextmanager
def pod(role: str, name: str, config: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A pod as a process."""
    command = [sys.executable, "-m", f"slipstream.{role}", "--config", str(config), "--name", name]
    with config.with_name(f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--parent", str(os.getpid())], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def test_a_stopped_rollout_holds_up_one_publication_for_the_deadline_and_rejoins_when_it_goes_on(
    policy: Policy, tiny_dir: Path, redis_url: str, tmp_path: Path
) -> None:
    async def play() -> None:
        async with scene(policy, tiny_dir, redis_url, tmp_path) as started:
            other = Worker("other", model_fingerprint=model_fingerprint(tiny_dir))
            await started.learner.join(other)
            await started.learner.publish(2)
            await started.until_member(2)
            started.rollout.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            assert (await started.learner.publish(3)).rollouts == 1
            assert time.monotonic() - began < SILENT_SECONDS + GONE_SECONDS + SLACK_SECONDS
            assert other.version == 3
            began = time.monotonic()
            await started.learner.publish(4)
            assert time.monotonic() - began < SLACK_SECONDS, "nobody waits for it a second time"
            started.rollout.send_signal(signal.SIGCONT)
            await started.until_member(4, seconds=30)
            assert other.version == 4

    asyncio.run(asyncio.wait_for(play(), 150))


def test_the_leases_of_a_killed_actor_are_free_when_its_heartbeats_have_been_missed(
    policy: Policy, tiny_dir: Path, redis_url: str, tmp_path: Path
) -> None:
    async def play() -> None:
        async with scene(policy, tiny_dir, redis_url, tmp_path) as started:
            await started.until_ledger("running", 2, seconds=30)
            deadline = time.monotonic() + 2.5 * LEASE_SECONDS
            while time.monotonic() < deadline:
                await started.replay.store.expire()
                await asyncio.sleep(0.1)
            assert (await started.replay.ledger()).expired == 0, "its leases outlast their seconds"
            started.actor.kill()
            assert await started.until_ledger("expired", 2, seconds=30) < LEASE_SECONDS + SLACK_SECONDS
            assert len(await started.replay.lease(2, worker="another", serving=1)) == 2

    asyncio.run(asyncio.wait_for(play(), 150))
