"""The environment `openenv` with a server of the real package, in its own virtual environment."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from actor.adapters.openenv_servers import TOKENS, decoded, played, row, says
from actor.adapters.venvs import python_with
from rollout.fakes import scenario
from slipstream.actor.adapters.openenv import OpenEnv, open_openenv
from slipstream.config import ConfigError
from slipstream.config.openenv import OpenEnvEnvironment
from slipstream.telemetry.logs import Log

pytestmark = pytest.mark.long
SERVER = str(Path(__file__).with_name("number_server.py"))


@pytest.fixture(scope="session")
def python() -> str:
    return python_with("openenv", "openenv==0.10.0")


@asynccontextmanager
async def opened(python: str, *, sessions: int = 50, **settings: Any) -> AsyncIterator[OpenEnv]:
    config = OpenEnvEnvironment.model_validate(
        {
            "command": [python, SERVER, "{port}", str(sessions)],
            "start_seconds": 100,
            "reset_fields": ["seed"],
            "action_field": "guess",
            "start": "{hint}: ",
            "observation": " {hint}, ",
            "refused": " no! ",
            **settings,
        }
    )
    async with open_openenv(config, tokens=TOKENS, log=Log(pod="test")) as environment:
        yield environment


def secret(seed: int) -> int:
    return random.Random(seed).randint(0, 9)


def test_fifty_concurrent_games_have_the_numbers_of_their_seeds(python: str) -> None:
    @scenario
    async def play() -> None:
        async with opened(python) as environment:
            games = [played(environment, says(str(secret(n))), prompt=row(seed=str(n))) for n in range(50)]
            for game in await asyncio.gather(*games):
                assert game.ending == "finished"
                assert decoded(game.completion.prompt_token_ids or ()) == "play 0 to 9: "
                values = {reward.name: reward.value for reward in game.completion.rewards}
                assert values["total_reward"] == 1.0

    play()


def test_a_game_with_a_wrong_guess_a_refused_action_and_the_right_guess_has_three_rewards(
    python: str,
) -> None:
    number = secret(3)

    @scenario
    async def play() -> None:
        async with opened(python) as environment:
            wrong = 0 if number else 9
            game = await played(environment, says(str(wrong), "what", str(number)), prompt=row(seed="3"))
        hint = "larger" if wrong < number else "smaller"
        assert decoded(game.completion.token_ids) == f"{wrong} {hint}, what no! {number}"
        values = {reward.name: reward.value for reward in game.completion.rewards}
        assert values == {
            "total_reward": pytest.approx(0.9),
            "last_reward": 1.0,
            "finished": 1.0,
            "refused_actions": 1.0,
        }

    play()


def test_an_error_of_the_environment_withholds_the_completion(python: str) -> None:
    @scenario
    async def play() -> None:
        async with opened(python) as environment:
            game = await played(environment, says("100"), prompt=row(seed="3"))
        assert game.completion.withheld
        assert "the guess broke the environment" in game.completion.rewards[0].detail

    play()


def test_more_episodes_than_sessions_of_the_server_are_all_played(python: str) -> None:
    @scenario
    async def play() -> None:
        async with opened(python, sessions=2) as environment:
            games = [played(environment, says(str(secret(n))), prompt=row(seed=str(n))) for n in range(8)]
            assert {game.ending for game in await asyncio.gather(*games)} == {"finished"}

    play()


def test_a_field_that_actions_lack_is_an_error(python: str) -> None:
    @scenario
    async def play() -> None:
        with pytest.raises(ConfigError, match="its fields are: guess"):
            async with opened(python, action_field="move"):
                pass

    play()
