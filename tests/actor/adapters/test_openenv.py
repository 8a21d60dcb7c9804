"""The environment `openenv` with a scripted server: observations, trained tokens, and failures."""

import asyncio
import json
from typing import Any

import pytest
from actor.adapters.openenv_servers import (
    SCHEMA,
    ScriptedServer,
    decoded,
    environment_of,
    failed,
    higher_or_lower,
    played,
    row,
    said,
    says,
    serving,
)
from rollout.fakes import scenario
from slipstream.actor.adapters.openenv import read_action
from slipstream.actor.adapters.openenv_session import ActionRefused
from slipstream.actor.environment import EpisodeBounds
from slipstream.actor.episode_run import Played
from slipstream.config import ConfigError
from slipstream.config.openenv import OpenEnvEnvironment
from slipstream.records import FinishReason

TEXTS = {"action_field": "guess", "start": "{hint}:", "observation": "[{hint}]", "refused": "({error})"}


def rewards(episode: Played) -> dict[str, float]:
    return {reward.name: reward.value for reward in episode.completion.rewards}


def detail(episode: Played) -> str:
    """Return the reason for which the episode is withheld."""
    assert episode.completion.withheld
    return episode.completion.rewards[0].detail


@scenario
async def test_the_tokens_and_rewards_of_a_game_worked_by_hand() -> None:
    async with (
        serving(ScriptedServer(higher_or_lower(7))) as server,
        environment_of(server, **TEXTS, reset={"tries": 9}, reset_fields=["seed"]) as environment,
    ):
        episode = await played(environment, says("3", "9", "7"), prompt=row(seed="5"))
    assert server.received[0] == ("reset", {"tries": 9, "seed": 5})
    assert [data for kind, data in server.received if kind == "step"] == [{"guess": g} for g in "397"]
    (segment,) = episode.completion.segments
    assert decoded(segment.prompt_token_ids or ()) == "play guess:"
    assert decoded(segment.token_ids) == "3[up]9[down]7"
    assert segment.mask == (1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1)
    assert (episode.ending, episode.turns) == ("finished", 3)
    assert rewards(episode) == {
        "total_reward": 0.0,
        "last_reward": 1.0,
        "finished": 1.0,
        "refused_actions": 0.0,
    }
    assert rewards(episode).keys() == set(OpenEnvEnvironment.reward_names or ())


@scenario
async def test_without_a_start_text_the_turns_follow_the_prompt_of_the_row() -> None:
    async with (
        serving(ScriptedServer(higher_or_lower(7))) as server,
        environment_of(server, **{**TEXTS, "start": ""}) as environment,
    ):
        episode = await played(environment, says("7"))
    assert episode.completion.prompt_token_ids is None
    assert decoded(episode.completion.token_ids) == "7"


@scenario
async def test_a_refused_action_is_a_text_for_the_policy_and_costs_a_turn() -> None:
    async with (
        serving(ScriptedServer(higher_or_lower(7))) as server,
        environment_of(server, **TEXTS) as environment,
    ):
        episode = await played(environment, says("x", "7"))
    assert decoded(episode.completion.token_ids) == "x(guess must be a number)7"
    assert rewards(episode) == {
        "total_reward": 1.0,
        "last_reward": 1.0,
        "finished": 1.0,
        "refused_actions": 1.0,
    }


@scenario
async def test_a_full_episode_keeps_its_rewards_so_far() -> None:
    async with (
        serving(ScriptedServer(higher_or_lower(7))) as server,
        environment_of(server, **TEXTS) as environment,
    ):
        bounds = EpisodeBounds(max_tokens=100, context_tokens=200, max_turns=2, seconds=10)
        episode = await played(environment, says("1", "2", "3"), bounds=bounds)
        assert episode.ending == "full"
        assert episode.completion.finish_reason is FinishReason.LENGTH
        assert rewards(episode)["total_reward"] == -1.0
        assert rewards(episode)["finished"] == 0.0
        await asyncio.sleep(0.05)
        assert server.open == 0


@scenario
async def test_a_text_of_the_server_cannot_become_a_special_token() -> None:
    evil = "<eos> <pad>"

    def session() -> Any:
        return lambda kind, data: said(hint=evil) if kind == "reset" else said(1.0, done=True, hint=evil)

    async with (
        serving(ScriptedServer(session)) as server,
        environment_of(server, **TEXTS) as environment,
    ):
        episode = await played(environment, says("7"))
    prompt = episode.completion.prompt_token_ids or ()
    special = {0, 1}
    assert not special & set(prompt)


@scenario
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (failed("EXECUTION_ERROR", "division by\nzero"), "step: division by zero"),
        ({"type": "observation"}, "the answer is no message of OpenEnv"),
        ([1], "the answer is no message of OpenEnv: [1]"),
        (said("much"), "no observation and reward in the answer"),
        (None, "no answer of the environment"),
    ],
)
async def test_a_failure_of_the_environment_withholds_the_completion(answer: Any, reason: str) -> None:
    def session() -> Any:
        return lambda kind, data: said(hint="go") if kind == "reset" else answer

    async with (
        serving(ScriptedServer(session)) as server,
        environment_of(server, **TEXTS) as environment,
    ):
        episode = await played(environment, says("7"))
    assert episode.ending == "failed"
    assert reason in detail(episode)


@scenario
async def test_an_unknown_field_of_observations_withholds_the_completion_and_lists_the_known_ones() -> None:
    open_schema = {"observation": {"additionalProperties": True}}
    async with (
        serving(ScriptedServer(higher_or_lower(7), schema=open_schema)) as server,
        environment_of(server, **{**TEXTS, "observation": "{left} {board}"}) as environment,
    ):
        episode = await played(environment, says("3"))
    assert "no field 'board' for '{left} {board}'; it has: hint, left, observation, reward" in detail(episode)


@scenario
async def test_a_missing_column_withholds_the_completion() -> None:
    async with (
        serving(ScriptedServer(higher_or_lower(7))) as server,
        environment_of(server, **TEXTS, reset_fields=["level"]) as environment,
    ):
        episode = await played(environment, says("3"), prompt=row(seed="1"))
    assert "the row has no column 'level' (data.environment.reset_fields); it has: seed" in detail(episode)


@scenario
async def test_an_environment_that_never_answers_ends_the_episode_after_its_timeout() -> None:
    async with (
        serving(ScriptedServer(higher_or_lower(7), step_seconds=60)) as server,
        environment_of(server, **TEXTS) as environment,
    ):
        started = asyncio.get_running_loop().time()
        episode = await played(environment, says("3"), bounds=EpisodeBounds(max_tokens=9, seconds=0.2))
        assert episode.ending == "timeout"
        assert asyncio.get_running_loop().time() - started < 5


@scenario
async def test_no_more_sessions_than_configured_are_open_and_waiting_has_no_time_limit() -> None:
    async with (
        serving(ScriptedServer(higher_or_lower(7), step_seconds=0.02)) as server,
        environment_of(server, **TEXTS, sessions=2) as environment,
    ):
        # Ten episodes, two at a time, take longer than `seconds`, so the limit does not include the wait.
        bounds = EpisodeBounds(max_tokens=50, context_tokens=100, seconds=0.5)
        episodes = [played(environment, says("7"), bounds=bounds) for _ in range(10)]
        assert {episode.ending for episode in await asyncio.gather(*episodes)} == {"finished"}
    assert server.most_open == 2


@scenario
async def test_a_session_is_requested_again_while_the_server_has_none_free() -> None:
    async with (
        serving(ScriptedServer(higher_or_lower(7), capacity=1, step_seconds=0.02)) as server,
        environment_of(server, **TEXTS) as environment,
    ):
        episodes = [played(environment, says("7")) for _ in range(5)]
        assert {episode.ending for episode in await asyncio.gather(*episodes)} == {"finished"}
    assert server.most_open == 1


@scenario
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"action_field": "move"}, "action_field: names the field 'move', and an action"),
        ({"start": "{board}"}, "start: names the field 'board', and an observation"),
        ({"observation": "{hint} {turn}"}, "its fields are: hint, left, observation, reward"),
        ({"refused": "{hint}"}, "refused: names the field 'hint'"),
    ],
)
async def test_names_that_the_schema_lacks_stop_the_actor_at_its_start(
    settings: dict[str, str], reason: str
) -> None:
    async with serving(ScriptedServer(higher_or_lower(7))) as server:
        with pytest.raises(ConfigError, match=r"data\.environment") as caught:
            async with environment_of(server, **{**TEXTS, **settings}):
                pass
    assert reason in str(caught.value)


@scenario
async def test_the_first_observation_may_have_its_own_fields() -> None:
    schema = {**SCHEMA, "reset_observation": {"properties": {"board": {}}}}
    server = ScriptedServer(lambda: lambda kind, data: said(board="xo", done=True), schema=schema)
    async with serving(server), environment_of(server, **{**TEXTS, "start": "{board}"}) as environment:
        episode = await played(environment, says("7"))
    assert "ended without a turn" in detail(episode)


@scenario
async def test_a_server_that_does_not_listen_stops_the_actor_with_the_address() -> None:
    server = ScriptedServer(higher_or_lower(7), url="http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"data\.environment\.url: http://127\.0\.0\.1:9 does not answer"):
        async with environment_of(server, **TEXTS):
            pass


@pytest.mark.parametrize(
    ("text", "field", "action"),
    [
        (" 7\n", "guess", {"guess": "7"}),
        ('{"x": 1}', None, {"x": 1}),
        ('```json\n{"x": 1}\n```', None, {"x": 1}),
        ('```\n{"x": 1}```', None, {"x": 1}),
    ],
)
def test_a_turn_becomes_an_action(text: str, field: str | None, action: dict[str, Any]) -> None:
    assert read_action(text, field) == action


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hello", "the action is no JSON"),
        ("[1]", "is a JSON list"),
        (json.dumps("a"), "is a JSON str"),
        ("[" * 2000, "nested more than 100 levels deep"),
        ('{"x": ' + "[" * 900 + "]" * 900 + "}", "nested more than 100 levels deep"),
        ('{"x": "\\ud800"}', "characters that are no valid Unicode"),
    ],
    ids=lambda value: value[:40],
)
def test_a_turn_without_an_action_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ActionRefused, match=reason):
        read_action(text, None)
