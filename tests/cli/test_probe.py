"""`slipstream probe` calls real services over real channels, and reports each possible fault."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from embedded_redis import embedded_redis
from replay.driver import Driver, run_config, serving
from slipstream.cli.__main__ import main
from slipstream.cli.clusters.probe_checks import run_probe
from slipstream.config import RunConfig, parse_config
from slipstream.config.load import given_tree
from slipstream.config.rewards import ExactMatchConfig
from slipstream.records import Prompt
from slipstream.replay.redis_server import RedisServer
from slipstream.rpc.server import start_server
from slipstream.v1 import learner_pb2, learner_pb2_grpc, replay_pb2, replay_pb2_grpc
from slipstream.v1.verifier_pb2_grpc import add_VerifierServicer_to_server
from slipstream.verifier.adapters import EachAnswer
from slipstream.verifier.reward import Answer, Reward, RewardFunction, Verdict
from slipstream.verifier.rewards.matching import ExactMatch
from slipstream.verifier.servicer import VerifierServicer
from verifier.scoring import Bench

Output = pytest.CaptureFixture[str]
NOWHERE = "127.0.0.1:1"


class LearnerStub(learner_pb2_grpc.FleetServicer):
    """A learner at version 7 with one rollout."""

    async def GetPolicy(self, request: Any, context: Any) -> learner_pb2.GetPolicyResponse:
        member = learner_pb2.FleetMember(worker_id="w", version=7)
        return learner_pb2.GetPolicyResponse(version=7, epoch=1, members=[member])


class UnbalancedReplay(replay_pb2_grpc.ReplayServicer):
    """A replay whose ledger lacks a group."""

    async def GetStats(self, request: Any, context: Any) -> replay_pb2.GetStatsResponse:
        return replay_pb2.GetStatsResponse(ledger=replay_pb2.Ledger(leased=1), residual=1)


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with embedded_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@contextlib.asynccontextmanager
async def server(register: Any, *, healthy: bool = True) -> AsyncIterator[str]:
    """Start a gRPC server of one servicer, and yield its address."""
    started = await start_server("127.0.0.1:0", register, config=RunConfig().rpc)
    await started.set_serving(healthy)
    try:
        yield started.address
    finally:
        await started.stop(grace=0)


def verifier(
    functions: Mapping[str, RewardFunction] | None = None,
) -> contextlib.AbstractAsyncContextManager[str]:
    """Start a verifier with these reward functions, or with the reward of the configuration."""
    rewards: dict[str, Reward] = {name: EachAnswer(f) for name, f in (functions or {}).items()}
    rewards = rewards or {"exact_match": ExactMatch(ExactMatchConfig(name="exact_match"))}
    bench = Bench(rewards=rewards)
    return server(partial(add_VerifierServicer_to_server, VerifierServicer(bench.scorer, bench.programs)))


def with_addresses(config: RunConfig, **addresses: str) -> RunConfig:
    """Return the configuration with the addresses of services."""
    return parse_config(
        given_tree(config), [f"{name}.address={address}" for name, address in addresses.items()]
    )


@contextlib.asynccontextmanager
async def replay_and_verifier(
    redis: RedisServer, rewards: dict[str, RewardFunction] | None = None
) -> AsyncIterator[tuple[Driver, RunConfig]]:
    """Start replay and a verifier; yield replay's driver and a configuration with the addresses."""
    config = run_config()
    async with serving(redis.url, config) as driver, verifier(rewards) as address:
        yield driver, with_addresses(config, replay=driver.address, verifier=address)


def verdicts(capsys: Output) -> list[tuple[str, str]]:
    """Return the verdict and the name of each printed line."""
    return [(line.split()[0], line.split()[1]) for line in capsys.readouterr().out.splitlines()]


def test_the_probe_of_replay_checks_redis_and_the_ledger(redis_server: RedisServer, capsys: Output) -> None:
    async def play() -> bool:
        async with replay_and_verifier(redis_server) as (driver, config):
            await driver.make(2)
            return await run_probe("replay", config, deadline_seconds=5)

    assert asyncio.run(play())
    assert verdicts(capsys) == [("ok", "replay"), ("ok", "redis"), ("ok", "ledger")]


def test_the_probe_of_the_circle_returns_its_lease(redis_server: RedisServer, capsys: Output) -> None:
    async def play() -> None:
        async with replay_and_verifier(redis_server) as (driver, config):
            before = await driver.ledger()
            assert await run_probe("circle", config, deadline_seconds=5)
            after = await driver.ledger()
            assert (after.leased, after.returned) == (before.leased + 1, before.returned + 1)
            assert (after.running, after.inserted, after.residual) == (0, 0, 0)
            (lease,) = await driver.lease()
            assert lease.dispatch_index == 0  # the prompt that the probe returned comes first

    asyncio.run(play())
    assert verdicts(capsys) == [
        ("ok", name) for name in ("replay", "verifier", "lease", "score", "return", "ledger")
    ]


def test_the_probe_of_the_circle_never_leases_a_prompt_of_an_evaluation(
    redis_server: RedisServer, capsys: Output
) -> None:
    async def play() -> None:
        async with replay_and_verifier(redis_server) as (driver, config):
            await driver.start_evaluation(version=0)
            assert await run_probe("circle", config, deadline_seconds=5)

    asyncio.run(play())
    assert "prompt training-0" in capsys.readouterr().out


def test_while_admission_is_closed_inserted_groups_prove_that_the_circle_works(
    redis_server: RedisServer, capsys: Output
) -> None:
    async def play() -> None:
        async with replay_and_verifier(redis_server) as (driver, config):
            taken = await driver.lease(100)
            probing = asyncio.create_task(run_probe("circle", config, deadline_seconds=10))
            for lease in taken:
                await asyncio.wait([probing], timeout=0.3)
                if probing.done():
                    break
                await driver.insert(lease)
            assert await probing

    asyncio.run(play())
    printed = capsys.readouterr().out
    assert "admission is closed, and" in printed
    assert "groups came in meanwhile" in printed


def test_the_probe_fails_if_admission_stays_closed_and_no_group_is_inserted(
    redis_server: RedisServer, capsys: Output
) -> None:
    async def play() -> bool:
        async with replay_and_verifier(redis_server) as (driver, config):
            await driver.lease(100)
            return await run_probe("circle", config, deadline_seconds=0.3)

    assert not asyncio.run(play())
    assert "FAIL  circle    admission is closed, and no group came in" in capsys.readouterr().out


def test_a_failed_reward_fails_the_probe_and_the_lease_is_returned(
    redis_server: RedisServer, capsys: Output
) -> None:
    def burst(prompt: Prompt, answer: Answer) -> Verdict:
        raise RuntimeError("the sandbox does not start")

    async def play() -> None:
        async with replay_and_verifier(redis_server, {"exact_match": burst}) as (driver, config):
            assert not await run_probe("circle", config, deadline_seconds=5)
            assert (await driver.ledger()).running == 0

    asyncio.run(play())
    printed = capsys.readouterr().out
    assert "FAIL  circle    the verifier could not score: exact_match: RuntimeError: the sandbox" in printed


def test_a_verifier_with_another_configuration_fails_the_probe(
    redis_server: RedisServer, capsys: Output
) -> None:
    async def play() -> bool:
        rewards: dict[str, RewardFunction] = {"countdown": lambda *_: Verdict(value=1.0)}
        async with replay_and_verifier(redis_server, rewards) as (_, config):
            return await run_probe("circle", config, deadline_seconds=5)

    assert not asyncio.run(play())
    assert "scored ['countdown']; the configuration has ['exact_match']" in capsys.readouterr().out


def test_a_replay_without_redis_fails_the_probe(tmp_path: Path, capsys: Output) -> None:
    async def play() -> bool:
        redis = RedisServer(tmp_path)
        await redis.start(timeout=20)
        async with replay_and_verifier(redis) as (_, config):
            await redis.stop()
            return await run_probe("replay", config, deadline_seconds=0.5)

    assert not asyncio.run(play())
    assert verdicts(capsys) == [("ok", "replay"), ("FAIL", "replay")]


def test_a_ledger_with_a_residual_fails_the_probe(capsys: Output) -> None:
    async def play() -> bool:
        register = partial(replay_pb2_grpc.add_ReplayServicer_to_server, UnbalancedReplay())
        async with server(register) as address:
            return await run_probe("replay", with_addresses(RunConfig(), replay=address), deadline_seconds=5)

    assert not asyncio.run(play())
    assert "FAIL  replay    the ledger does not close: residual 1" in capsys.readouterr().out


def test_the_probe_of_the_learner_prints_its_version(capsys: Output) -> None:
    async def play() -> bool:
        async with server(partial(learner_pb2_grpc.add_FleetServicer_to_server, LearnerStub())) as address:
            return await run_probe(
                "learner", with_addresses(RunConfig(), learner=address), deadline_seconds=5
            )

    assert asyncio.run(play())
    assert "version 7, 1 workers in the fleet" in capsys.readouterr().out


def test_the_probe_of_the_teacher_checks_its_health(capsys: Output) -> None:
    async def play(healthy: bool) -> bool:
        async with server(_nothing, healthy=healthy) as address:
            return await run_probe(
                "teacher", with_addresses(RunConfig(), teacher=address), deadline_seconds=0.5
            )

    assert asyncio.run(play(True))
    assert not asyncio.run(play(False))
    assert verdicts(capsys) == [("ok", "teacher"), ("FAIL", "teacher")]


def test_a_service_that_is_not_ready_fails_at_the_deadline(capsys: Output) -> None:
    async def play() -> bool:
        async with server(_nothing, healthy=False) as address:
            return await run_probe(
                "verifier", with_addresses(RunConfig(), verifier=address), deadline_seconds=0.1
            )

    assert not asyncio.run(play())
    assert "says NOT_SERVING" in capsys.readouterr().out


def test_a_service_that_becomes_ready_before_the_deadline_passes(capsys: Output) -> None:
    async def play() -> bool:
        started = await start_server("127.0.0.1:0", _nothing, config=RunConfig().rpc)
        config = with_addresses(RunConfig(), verifier=started.address)
        probing = asyncio.create_task(run_probe("verifier", config, deadline_seconds=20))
        await asyncio.wait([probing], timeout=0.2)
        assert not probing.done()
        await started.set_serving(True)
        passed = await probing
        await started.stop(grace=0)
        return passed

    assert asyncio.run(play())


@pytest.mark.parametrize("target", ["replay", "verifier", "teacher", "learner", "circle"])
def test_a_service_that_does_not_answer_fails_the_command(
    target: str, tmp_path: Path, capsys: Output
) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(
        "".join(
            f"{name}: {{address: '{NOWHERE}'}}\n" for name in ("replay", "verifier", "teacher", "learner")
        )
    )
    assert main(["probe", target, "--config", str(config), "--deadline", "0.2"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith(f"FAIL  {target}")
    assert f"at {NOWHERE}: gave up after" in printed


def test_files_of_the_configuration_are_merged_as_in_a_pod(tmp_path: Path, capsys: Output) -> None:
    for name, text in (
        ("run", "verifier: {address: '127.0.0.1:2'}"),
        ("cluster", f"verifier: {{address: '{NOWHERE}'}}"),
    ):
        (tmp_path / f"{name}.yaml").write_text(text)
    files = [f"--config={tmp_path / name}.yaml" for name in ("run", "cluster")]
    assert main(["probe", "verifier", *files, "--deadline", "0.1"]) == 1
    assert f"verifier at {NOWHERE}" in capsys.readouterr().out


def test_a_missing_configuration_is_a_usage_error(capsys: Output) -> None:
    assert main(["probe", "replay", "--config", "/nowhere/run.yaml"]) == 2
    assert "/nowhere/run.yaml: no such file" in capsys.readouterr().err


def _nothing(_: grpc.aio.Server) -> None:
    """Register no service."""
