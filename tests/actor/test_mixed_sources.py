"""One run with several environments: each prompt is played in that of its source, and has its rewards."""

import asyncio
import io
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import grpc
import pytest
from actor.chat_templates import family
from actor.rollout_servers import fleet
from embedded_redis import embedded_redis
from replay.driver import run_config, serving
from rollout.fakes import served_by
from slipstream.actor.__main__ import make_group_sampler
from slipstream.actor.environment import SingleTurn
from slipstream.actor.environments import EnvironmentResources, open_environments
from slipstream.actor.loop import Actor
from slipstream.actor.replay_client import ReplayClient
from slipstream.config import ConfigError, RunConfig
from slipstream.config.sources import UnknownSource, applying_rewards
from slipstream.prompts import make_source
from slipstream.records import Lease, Prompt
from slipstream.rpc import codec
from slipstream.rpc.channel import open_channel
from slipstream.rpc.pod import Pod
from slipstream.telemetry.health import Health
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.v1 import types_pb2 as pb
from slipstream.v1 import verifier_pb2
from slipstream.v1.verifier_pb2_grpc import VerifierStub, add_VerifierServicer_to_server
from slipstream.verifier.programs import Programs
from slipstream.verifier.resources import Resources
from slipstream.verifier.rewards.bind import bind_rewards
from slipstream.verifier.scorer import Scorer
from slipstream.verifier.servicer import VerifierServicer

TOKENS = family("qwen25")
TOOL = {"kind": "function", "function": "actor.own_tools:calculate"}
GAME = {"kind": "custom", "function": "actor.own_games:TwoTurns", "turn_tokens": 2}
SOURCES: list[dict[str, Any]] = [
    {"kind": "addition", "digits": 1, "share": 2},
    {"kind": "sort_digits", "name": "game", "environment": GAME, "evaluation_reward": "turns"},
    {
        "kind": "sort_digits",
        "name": "tools",
        "environment": {"kind": "chat_tools", "tools": [TOOL]},
        "evaluation_reward": "failed_tool_calls",
    },
]
REWARDS: list[dict[str, Any]] = [
    {"name": "turns", "kind": "environment", "when": {"source": ["game"]}},
    {"name": "exact_match", "when": {"source": ["addition", "tools"]}},
    {"name": "failed_tool_calls", "kind": "environment", "weight": -0.1, "when": {"source": ["tools"]}},
    {"name": "format", "pattern": ".*", "weight": 0.1, "when": {"source": ["addition"]}},
]
APPLYING = {
    "addition": ["exact_match", "format"],
    "game": ["turns"],
    "tools": ["exact_match", "failed_tool_calls"],
}
GROUPS = 12


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with embedded_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


def mixed(*sources: dict[str, Any]) -> RunConfig:
    data = {"kind": "mixture", "of": list(sources or SOURCES)}
    return run_config(per_step=GROUPS, depth=0, data=data, rewards=REWARDS)


def make_pod(config: RunConfig) -> Pod:
    log = Log(pod="w", stream=io.StringIO())
    return Pod(
        name="w",
        config=config,
        log=log,
        metrics=Metrics(),
        health=Health(),
        stop=asyncio.Event(),
        ready_file=None,
        metrics_port=0,
    )


@asynccontextmanager
async def verifier(pod: Pod) -> AsyncIterator[grpc.aio.Channel]:
    """Yield a channel to a verifier with the rewards of the run."""
    resources = Resources.make(pod.config.verifier, metrics=Metrics(), log=pod.log)
    scorer = Scorer(
        bind_rewards(pod.config.rewards, resources),
        queue=resources.queue,
        metrics=Metrics(),
        log=pod.log,
        applying=applying_rewards(pod.config),
    )
    programs = Programs(resources.sandbox, limits=None, queue=resources.queue, metrics=Metrics())
    register = partial(add_VerifierServicer_to_server, VerifierServicer(scorer, programs))
    await resources.start()
    try:
        async with served_by(register, pod.config) as channel:
            yield channel
    finally:
        await scorer.close()
        await resources.close()


async def play(redis_url: str) -> list[pb.Group]:
    """Let an actor work on one batch of the mixture; return the batch."""
    pod = make_pod(mixed())
    config = pod.config
    async with AsyncExitStack() as stack:
        replay = await stack.enter_async_context(
            serving(redis_url, config, source=make_source(config.data, seed=0))
        )
        scoring = await stack.enter_async_context(verifier(pod))
        engines = await stack.enter_async_context(fleet(silence_seconds=60.0))  # the only rollout stays
        channel = await stack.enter_async_context(open_channel(replay.address, config.rpc))
        await engines.add()
        resources = EnvironmentResources(
            config=config, tokens=TOKENS, verifier=scoring, metrics=pod.metrics, log=pod.log
        )
        environments = await stack.enter_async_context(open_environments(resources))
        actor = Actor(
            sampler=make_group_sampler(pod, engines.rollouts, scoring, environments, TOKENS),
            places=engines.rollouts,
            replay=ReplayClient(channel, config.rpc, worker_id="w"),
            served=engines.served,
            max_groups=8,
            group_timeout_seconds=30.0,
            heartbeat_seconds=1.0,
            metrics=pod.metrics,
            log=pod.log,
        )
        running = asyncio.create_task(actor.run(pod.stop))
        async with asyncio.timeout(50):
            while (await replay.ledger()).inserted < GROUPS:
                assert not running.done(), running.result()
                await asyncio.sleep(0.02)
        pod.stop.set()
        await running
        batch = await replay.sample(GROUPS)
        await replay.ack(batch, version=1)
        stats = await replay.stats()
        assert stats.residual == 0
        assert stats.ledger.running == 0
        return batch


def test_each_completion_has_exactly_the_rewards_that_apply_to_its_source(redis_url: str) -> None:
    batch = asyncio.run(play(redis_url))
    assert Counter(group.prompt.source for group in batch) == {"addition": 6, "game": 3, "tools": 3}
    for group in batch:
        for completion in group.completions:
            rewards = {reward.name: reward for reward in completion.rewards}
            assert list(rewards) == APPLYING[group.prompt.source]
            assert all(reward.outcome != pb.OUTCOME_ERROR for reward in completion.rewards)
            if group.prompt.source == "game":
                assert rewards["turns"].value == 2.0
                assert b"\x00" in completion.mask
            else:
                assert b"\x00" not in completion.mask
            assert bool(completion.prompt_token_ids) == (group.prompt.source == "tools")


async def opened(config: RunConfig) -> dict[str, Any]:
    """Return the environments of a run by source."""
    pod = make_pod(config)
    async with open_channel("127.0.0.1:1", config.rpc) as channel:
        resources = EnvironmentResources(
            config=config, tokens=TOKENS, verifier=channel, metrics=pod.metrics, log=pod.log
        )
        async with open_environments(resources) as environments:
            names = [source["name"] for source in config.data.model_dump()["of"]]
            return {name: environments.of(name) for name in names}


def test_sources_share_one_environment_where_its_settings_are_equal() -> None:
    game = {"kind": "sort_digits", "environment": GAME}
    longer = {**game, "environment": {**GAME, "max_turns": 3}}
    parts = [{**part, "name": name} for name, part in (("a", game), ("b", game), ("c", longer))]
    environments = asyncio.run(opened(mixed(*parts, {"kind": "addition", "name": "d"})))
    assert environments["a"] is environments["b"]
    assert environments["c"].environment is not environments["a"].environment
    assert (environments["a"].bounds.max_turns, environments["c"].bounds.max_turns) == (10, 3)
    assert isinstance(environments["d"].environment, SingleTurn)


def test_an_environment_that_cannot_be_made_is_named_with_its_source() -> None:
    broken = {
        "kind": "sort_digits",
        "name": "b",
        "environment": {**GAME, "function": "actor.own_games:Missing"},
    }
    with pytest.raises(ConfigError, match=r"^data\.of\.1\.environment\.function: ") as caught:
        asyncio.run(opened(mixed({"kind": "addition", "name": "a"}, broken)))
    assert [problem.key for problem in caught.value.problems] == ["data.of.1.environment.function"]


def test_a_lease_of_an_unknown_source_ends_the_actor_with_its_name() -> None:
    async def generate() -> None:
        pod = make_pod(mixed())
        async with open_channel("127.0.0.1:1", pod.config.rpc) as channel, fleet() as engines:
            resources = EnvironmentResources(
                config=pod.config, tokens=TOKENS, verifier=channel, metrics=pod.metrics, log=pod.log
            )
            async with open_environments(resources) as environments:
                sampler = make_group_sampler(pod, engines.rollouts, channel, environments, TOKENS)
                prompt = Prompt(prompt_id="p", task="t", answer="", text="?", source="chess")
                lease = Lease(
                    group_id="g", lease_epoch=1, dispatch_index=0, prompt=prompt, group_size=2, seconds=9.0
                )
                await sampler.generate(lease, engines.rollouts.beside("p"))

    with pytest.raises(UnknownSource, match="'chess', and the sources of this run are addition, game, tools"):
        asyncio.run(generate())


def test_the_verifier_refuses_a_prompt_of_an_unknown_source() -> None:
    async def score() -> None:
        pod = make_pod(mixed())
        async with verifier(pod) as channel:
            prompt = Prompt(prompt_id="p", task="t", answer="", text="?", source="chess")
            request = verifier_pb2.ScoreRequest(
                prompt=codec.prompt_to_proto(prompt),
                answers=[verifier_pb2.Answer(text="1", tokens=1, finish_reason=pb.FINISH_REASON_STOP)],
            )
            await VerifierStub(channel).Score(request)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        asyncio.run(score())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "of the source 'chess'" in (caught.value.details() or "")
