"""Rollouts, actors and a verifier that are killed, stopped or ended in the middle of many streams.

All processes are real; the engine is one whose every token can be checked (traced_rollout.py).
"""

import asyncio
import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from embedded_redis import embedded_redis
from faults.workers import TOKENS, Circle, circle
from replay.driver import MadeUpPrompts
from slipstream.cli.launch.pods import WORK_STOP_SECONDS
from slipstream.records import Outcome
from slipstream.tokens import load_engine_tokens

KILL, TERMINATE, STOP = (
    pytest.param(signal.SIGKILL, id="kill"),
    pytest.param(signal.SIGTERM, id="terminate"),
    pytest.param(signal.SIGSTOP, id="stop", marks=pytest.mark.faults),
)
VALUES = Path(__file__).parents[2] / "charts/slipstream/values.yaml"
POISONED = 9
"""Index of a prompt."""
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with embedded_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.mark.parametrize("number", [KILL, TERMINATE, STOP])
def test_the_loss_of_a_rollout_costs_no_completion_and_repeats_none(
    redis_url: str, tmp_path: Path, number: signal.Signals, record_property: Record
) -> None:
    async def play() -> None:
        async with circle(redis_url, tmp_path, "actor-0", "rollout-0", "rollout-1") as pods:
            await pods.until_streams("rollout-0", "rollout-1")
            at = pods.send("rollout-0", number)
            await pods.until_inserted((await pods.ledger()).leased)
            if number is signal.SIGTERM:
                assert await pods.ended("rollout-0") == 0
                before = {token.context for token in pods.trace("rollout-0") if token.time < at}
                assert before <= pods.contexts(), "tokens of a rollout that was asked to end are lost"
            if number is signal.SIGSTOP:
                pods.send("rollout-0", signal.SIGCONT)
            ledger = await pods.ledger()
            assert (ledger.expired, ledger.returned, ledger.retired, ledger.dropped) == (0, 0, {}, {})
            assert len(pods.continued()) >= 3
            record_property("seconds_to_continue", pods.seconds_to_continue("actor-0"))
        pods.assert_exact()

    asyncio.run(asyncio.wait_for(play(), 480))


@pytest.mark.faults
def test_two_of_three_rollouts_that_are_scaled_in_lose_no_token_and_repeat_none(
    redis_url: str, tmp_path: Path, record_property: Record
) -> None:
    """The last rollout has places for a third of the groups; the others wait for it with their tokens."""

    async def play() -> None:
        sections: dict[str, Any] = {"staleness": {"pipeline_depth": 2}, "rollout": {"max_groups": 6}}
        rollouts = ("rollout-0", "rollout-1", "rollout-2")
        async with circle(redis_url, tmp_path, "actor-0", *rollouts, **sections) as pods:
            await pods.until_streams(*rollouts)
            at = min(pods.send(name, signal.SIGTERM) for name in rollouts[:2])
            ended = [
                pods.ended(name, seconds=chart_values()["rollout"]["stopSeconds"]) for name in rollouts[:2]
            ]
            assert await asyncio.gather(*ended) == [0, 0]
            record_property("seconds_to_end", time.time() - at)
            publications = len(pods.publish_seconds)
            await pods.until_inserted((await pods.ledger()).leased)
            ledger = await pods.ledger()
            assert (ledger.expired, ledger.returned, ledger.retired, ledger.dropped) == (0, 0, {}, {})
            before = {token.context for token in pods.traced() if token.time < at}
            assert before <= pods.contexts(), "tokens that were sampled before the signal are lost"
            assert len(pods.continued()) >= 12
            assert {completion.engines for completion in pods.continued()} == {2}
            record_property("seconds_to_publish", max(pods.publish_seconds[publications:]))
        pods.assert_exact()

    asyncio.run(asyncio.wait_for(play(), 480))


@pytest.mark.faults
@pytest.mark.parametrize("number", [KILL, TERMINATE, STOP])
def test_the_loss_of_an_actor_costs_no_group_and_repeats_none(
    redis_url: str, tmp_path: Path, number: signal.Signals
) -> None:
    async def play() -> None:
        async with circle(redis_url, tmp_path, "actor-0", "actor-1", "rollout-0", "rollout-1") as pods:
            await pods.until("groups in the actor", lambda: sampling(pods, "actor-0") >= 3)
            pods.send("actor-0", number)
            leased = (await pods.ledger()).leased
            if number is signal.SIGTERM:
                assert await pods.ended("actor-0") == 0
                ledger = await pods.ledger()
                assert ledger.returned > 0
                assert ledger.expired == 0
            else:
                await pods.until("expired leases", lambda: expired(pods))
            if number is signal.SIGSTOP:
                pods.send("actor-0", signal.SIGCONT)
            await pods.until_inserted(leased)
            assert "group lost" not in pods.log("actor-1")
            assert (await pods.ledger()).retired == {}
        pods.assert_exact()

    asyncio.run(asyncio.wait_for(play(), 480))


@pytest.mark.faults
@pytest.mark.parametrize("waiting_for", ["rollout", "tool", "verifier"])
def test_an_actor_that_gets_sigterm_ends_and_returns_its_leases_whatever_its_groups_wait_for(
    redis_url: str, tmp_path: Path, waiting_for: str, record_property: Record
) -> None:
    stuck = {"kind": "custom", "function": "faults.stuck_tool:StuckTool"}
    sections = {"data": {"kind": "addition", "environment": stuck}} if waiting_for == "tool" else {}

    async def play() -> None:
        async with circle(redis_url, tmp_path, "rollout-0", **sections) as pods:
            with socket.create_server(("127.0.0.1", 0)) as silent:
                if waiting_for == "verifier":
                    address = f"127.0.0.1:{silent.getsockname()[1]}"
                    pods.environment["SLIPSTREAM_VERIFIER_ADDRESS"] = address
                pods.start("actor-0")
                await pods.until_ready("actor-0")
                await pods.until(f"groups that wait for the {waiting_for}", lambda: waits(pods, waiting_for))
                at = pods.send("actor-0", signal.SIGTERM)
                assert await pods.ended("actor-0", seconds=60) == 0
            seconds = pods.logged("actor-0", ": stopped") - at  # Python's own end takes CPU time after it
            record_property("seconds_to_stop", seconds)
            assert seconds < WORK_STOP_SECONDS
            ledger = await pods.ledger()
            assert ledger.returned >= 3
            assert (ledger.expired, ledger.retired, ledger.running) == (0, {}, 0)

    asyncio.run(asyncio.wait_for(play(), 480))


@pytest.mark.faults
def test_a_verifier_that_dies_while_groups_are_scored_costs_no_score(redis_url: str, tmp_path: Path) -> None:
    async def play() -> None:
        patient = {"timeout_seconds": 3.0, "retries": 20}
        async with circle(redis_url, tmp_path, "rollout-0", "rollout-1", verifier=patient) as pods:
            pods.environment["SLIPSTREAM_VERIFIER_ADDRESS"] = f"127.0.0.1:{free_port()}"
            for name in ("verifier-0", "actor-0"):
                pods.start(name)
            await pods.until_ready("actor-0", "verifier-0")
            await pods.until_streams("rollout-0", "rollout-1")
            pods.send("verifier-0", signal.SIGSTOP)  # what it gets from now on is not scored
            await pods.until("scoring", lambda: pods.metric("actor-0", "actor_groups", phase="scoring") >= 2)
            leased = (await pods.ledger()).leased
            pods.send("verifier-0", signal.SIGKILL)
            await pods.ended("verifier-0")
            pods.start("verifier-0")
            await pods.until_inserted(leased)
            ledger = await pods.ledger()
            assert (ledger.expired, ledger.returned, ledger.retired, ledger.withheld) == (0, 0, {}, 0)
        pods.assert_exact()
        outcomes = {reward.outcome for _, completion in pods.completions() for reward in completion.rewards}
        assert outcomes == {Outcome.SCORE}

    asyncio.run(asyncio.wait_for(play(), 480))


@pytest.mark.faults
def test_a_prompt_that_ends_engines_is_retired_after_three_of_them_and_the_fleet_goes_on(
    redis_url: str, tmp_path: Path
) -> None:
    async def play() -> None:
        async with circle(redis_url, tmp_path, "actor-0") as pods:
            tokens = load_engine_tokens(pods.config, pods.config.model.directory())
            poison = tokens.encode(MadeUpPrompts().training(POISONED))
            (tmp_path / "poison.json").write_text(json.dumps(poison))
            deaths: list[str] = []
            restarting = asyncio.create_task(keep_running(pods, ("rollout-0", "rollout-1"), deaths))
            await pods.until("retired prompt", lambda: retired(pods), seconds=300)
            leased = (await pods.ledger()).leased
            await pods.until("groups after it", lambda: len(pods.groups) >= leased + 6)
            ledger = await pods.ledger()
            missing = set(range(leased)) - {group.dispatch_index for group in pods.groups}
            restarting.cancel()
        pods.assert_exact()
        assert missing == {POISONED}
        assert ledger.retired == {"engine_died": 1}
        assert len(deaths) == 3

    asyncio.run(asyncio.wait_for(play(), 800))


def sampling(pods: Circle, actor: str) -> float:
    """Return the number of groups that an actor samples now."""
    ready = (pods.folder / f"{actor}.json").exists()
    return pods.metric(actor, "actor_groups", phase="sampling") if ready else 0


def waits(pods: Circle, waiting_for: str) -> bool:
    """Return whether at least three groups of the actor wait for this."""
    phase = "scoring" if waiting_for == "verifier" else "sampling"
    many = pods.metric("actor-0", "actor_groups", phase=phase) >= 3
    recent = any(token.time > time.time() - 1 for token in pods.trace("rollout-0"))
    sampled = len(pods.trace("rollout-0")) > 9 * TOKENS
    return many and sampled and recent is (waiting_for == "rollout")


async def expired(pods: Circle) -> bool:
    return (await pods.ledger()).expired > 0


async def retired(pods: Circle) -> bool:
    return bool((await pods.ledger()).retired)


async def keep_running(pods: Circle, rollouts: tuple[str, ...], deaths: list[str]) -> None:
    """Start rollouts, and start again those that ended, as a Deployment does."""
    for name in rollouts:
        pods.start(name)
    while True:
        for name in rollouts:
            if pods.pods[name].poll() is not None:
                deaths.append(name)
                pods.start(name)
        await asyncio.sleep(0.1)


def chart_values() -> dict[str, Any]:
    """Return the values of the chart, such as how long a pod may take to stop."""
    values: dict[str, Any] = yaml.safe_load(VALUES.read_text())
    return values


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
