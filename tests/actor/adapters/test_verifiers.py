"""The environment `verifiers` with the real package, in its own virtual environment."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from actor.adapters.venvs import python_with
from actor.program_endpoint import TOKENS, Policy, Say, bounds
from slipstream.actor.adapters.verifiers import Verifiers, started_process
from slipstream.actor.environment import EpisodeBounds
from slipstream.actor.environments import EnvironmentResources, open_environment
from slipstream.actor.episode_run import Played, run_episode
from slipstream.config import ConfigError, parse_config
from slipstream.config.verifiers import TASK_FIELD, VerifiersEnvironment
from slipstream.records import FinishReason, Prompt
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics

pytestmark = pytest.mark.long
TASKSETS = str(Path(__file__).with_name("tasksets"))
SUMS = {"taskset": {"id": "sums_v1"}}


@pytest.fixture(scope="session")
def python() -> str:
    return python_with("verifiers", "verifiers==0.4.0")


class Rig:
    """An environment of verifiers as an actor opens it, and a policy."""

    def __init__(self, environment: Verifiers, say: Say) -> None:
        self.environment = environment
        self.policy = Policy(say=say)

    async def play(self, limits: EpisodeBounds | None = None, **task: Any) -> Played:
        return await run_episode(
            self.environment,
            Prompt(prompt_id="p", task="t", text="x", answer="", fields={TASK_FIELD: json.dumps(task)}),
            TOKENS.encode_text("x"),
            sample=self.policy.sample,
            tokens=TOKENS,
            bounds=limits or bounds(max_turns=8, seconds=100),
        )


@asynccontextmanager
async def rig(python: str, arguments: dict[str, Any], say: Say) -> AsyncIterator[Rig]:
    section = {
        "kind": "verifiers",
        "python": python,
        "arguments": arguments,
        "env": {"PYTHONPATH": TASKSETS},
    }
    config = parse_config({"data": {"kind": "addition", "environment": section}})
    resources = EnvironmentResources(
        config=config, tokens=TOKENS, verifier=Any, metrics=Metrics(), log=Log(pod="test")
    )
    async with open_environment(config.data.environment, resources) as environment:
        assert isinstance(environment, Verifiers)
        yield Rig(environment, say)


def adds(context: str) -> str:
    """Return the right answer to the last `3+1=`."""
    return str(int(context.rpartition("user:")[2].partition("+")[0]) + 1)


def rewards(episode: Played) -> dict[str, float]:
    return {reward.name: reward.value for reward in episode.completion.rewards}


def run(play: Any) -> None:
    async def within() -> None:
        async with asyncio.timeout(240):
            await play()

    asyncio.run(within())


def test_rewards_and_metrics_are_values_of_the_environment_by_name(python: str) -> None:
    async def play() -> None:
        async with rig(python, SUMS, adds) as env:
            right = await env.play(prompt="3+1=", system_prompt="Add.", answer="4")
            wrong = await env.play(prompt="3+1=", answer="5")
        assert rewards(right) == {"total_reward": 2.0, "correct": 1.0, "characters": 1.0}
        assert rewards(wrong) == {"total_reward": 0.0, "correct": 0.0, "characters": 1.0}
        assert (right.turns, right.completion.text) == (1, "4")
        (segment,) = right.completion.segments
        prompt_text = TOKENS.decode(segment.prompt_token_ids or ())
        assert prompt_text == "system:Add.user:3+1=assistant:"
        assert (TOKENS.decode(segment.token_ids), set(segment.mask)) == ("4", {1})

    run(play)


def test_a_hundred_concurrent_episodes_have_their_own_sessions(python: str) -> None:
    async def play() -> None:
        async with rig(python, SUMS, adds) as env:
            tasks = [(number % 9, number % 2) for number in range(100)]
            episodes = await asyncio.gather(
                *(env.play(prompt=f"{a}+1=", answer=str(a + 1 + wrong)) for a, wrong in tasks)
            )
        assert [rewards(episode)["correct"] for episode in episodes] == [1.0 - wrong for _, wrong in tasks]

    run(play)


def test_the_turns_of_an_environment_with_its_own_loop_are_trained(python: str) -> None:
    answers = iter(["5", "3", "4"])

    async def play() -> None:
        async with rig(python, {"taskset": {"id": "second_try_v1"}}, lambda _: next(answers)) as env:
            episode = await env.play(prompt="2+2=", answer="4")
        assert rewards(episode) == {"total_reward": 3.0, "tries": 3.0}
        assert episode.turns == 3
        (segment,) = episode.completion.segments
        sampled_text = TOKENS.decode(segment.token_ids)
        assert sampled_text == "5user:wrong, againassistant:3user:wrong, againassistant:4"
        sampled = [token for token, mask in zip(segment.token_ids, segment.mask, strict=True) if mask]
        assert sampled == [token for turn in env.policy.turns for token in turn.token_ids]

    run(play)


def test_the_policy_calls_a_tool_server_of_the_task(python: str) -> None:
    def looks_up(context: str) -> str:
        if "tool:slip means 42" in context:
            return "It means 42"
        return '<tool_call>{"name": "words_look_up", "arguments": {"word": "slip"}}</tool_call>'

    async def play() -> None:
        async with rig(python, {"taskset": {"id": "lookup_v1"}}, looks_up) as env:
            episode = await env.play(prompt="What does `slip` mean?")
        assert rewards(episode)["looked_up"] == 1.0
        assert "Return the meaning of a word." in TOKENS.decode(env.policy.contexts[0])
        assert episode.completion.text == "It means 42"
        assert (episode.turns, len(episode.completion.segments)) == (2, 1)

    run(play)


def test_environments_of_the_package_that_sample_several_times_run(python: str) -> None:
    async def play() -> None:
        arguments = {"id": "best-of-n", **SUMS, "n": 3}
        async with rig(python, arguments, adds) as env:
            episode = await env.play(prompt="3+1=", answer="4")
        assert episode.turns == 3
        assert any(name.endswith("/correct") for name in rewards(episode))
        assert len(episode.completion.segments) == 3

    run(play)


def test_a_full_episode_is_scored_with_its_turns_so_far(python: str) -> None:
    async def play() -> None:
        async with rig(python, {"taskset": {"id": "second_try_v1"}}, lambda _: "5") as env:
            episode = await env.play(bounds(max_turns=2, seconds=100), prompt="2+2=", answer="4")
        assert episode.completion.finish_reason is FinishReason.LENGTH
        assert episode.turns == 2

    run(play)


def test_errors_of_the_environment_withhold_the_completion_with_the_reason(python: str) -> None:
    async def play() -> None:
        async with rig(python, SUMS, adds) as env:
            episode = await env.play(prompt="3+1=", answer="4", trouble="raises")
            assert episode.completion.withheld
            assert "the setup broke" in episode.completion.rewards[0].detail
            assert rewards(await env.play(prompt="3+1=", answer="4"))["correct"] == 1.0

    run(play)


def test_the_process_is_restarted_after_its_death(python: str) -> None:
    async def play() -> None:
        async with rig(python, SUMS, adds) as env:
            episode = await env.play(prompt="3+1=", answer="4", trouble="ends")
            assert "the process of verifiers has ended" in episode.completion.rewards[0].detail
            assert rewards(await env.play(prompt="3+1=", answer="4"))["correct"] == 1.0
            running = env.environment._process._process
            assert running is not None
            os.killpg(running.pid, signal.SIGKILL)
            await asyncio.sleep(0.5)
            assert rewards(await env.play(prompt="3+1=", answer="4"))["correct"] == 1.0

    run(play)


def test_an_episode_beyond_its_time_is_ended_and_the_others_continue(python: str) -> None:
    async def play() -> None:
        async with rig(python, SUMS, adds) as env:
            late = await env.play(bounds(seconds=0.001), prompt="3+1=", answer="4")
            assert late.ending == "timeout"
            assert rewards(await env.play(prompt="3+1=", answer="4"))["correct"] == 1.0

    run(play)


def test_a_fault_of_the_environment_stops_the_actor_at_its_start(python: str) -> None:
    async def start(arguments: dict[str, Any], python: str = python) -> None:
        config = VerifiersEnvironment(python=python, arguments=arguments, env={"PYTHONPATH": TASKSETS})
        async with started_process(config, log=Log(pod="test")):
            pass

    for arguments, reason in (
        ({"taskset": {"id": "no_such"}}, "taskset 'no_such' not found"),
        ({"taskset": {"id": "sums_v1", "smallest": 1}}, "taskset.smallest Extra inputs are not permitted"),
        ({**SUMS, "id": "no_env"}, "environment 'no_env' not found"),
        ({**SUMS, "agent": {"harness": {"id": "no_harness"}}}, "harness 'no_harness' not found"),
    ):
        with pytest.raises(ConfigError, match=r"data\.environment") as caught:
            asyncio.run(start(arguments))
        assert reason in str(caught.value)
    with pytest.raises(ConfigError, match="there is no program /no/python"):
        asyncio.run(start(SUMS, "/no/python"))


def test_tasks_become_rows(python: str, tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    environment = {
        "kind": "verifiers",
        "python": python,
        "env": {"PYTHONPATH": TASKSETS},
        "arguments": {"taskset": {"id": "sums_v1", "largest": 5}},
    }
    data = {"kind": "file", "path": str(tmp_path / "tasks.jsonl"), "environment": environment}
    run.write_text(json.dumps({"data": data}))
    command = [sys.executable, "-m", "slipstream.actor.adapters.verifiers_rows", str(run), "--rows", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    made = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["prompt"], row["answer"]) for row in made] == [("0+1=", "1"), ("1+1=", "2"), ("2+1=", "3")]
    assert json.loads(made[2][TASK_FIELD])["system_prompt"] == "Add."
