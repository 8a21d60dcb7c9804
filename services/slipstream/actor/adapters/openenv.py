"""The environment `openenv`: the turns of the policy are the actions of an OpenEnv environment.

    prompt + start          what the first turn follows: the prompt of the row, and the observation of `reset`
    turn -> action          JSON, or the text as one field of the action
    observation             the text between two turns, from the observation of `step`

An action that has not the form of the environment's actions is answered with `refused`, and costs a turn. Any
other failure of the server withholds the completion.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from slipstream.actor.adapters.local_server import LocalServer, ServerFailed
from slipstream.actor.adapters.openenv_schema import check_against_schema
from slipstream.actor.adapters.openenv_session import (
    ActionRefused,
    OpenEnvFailed,
    Session,
    Step,
    begun_session,
)
from slipstream.actor.chat.messages import MOST_LEVELS, is_deep
from slipstream.actor.environment import Episode
from slipstream.actor.transcript import Transcript
from slipstream.config import ConfigError
from slipstream.config.openenv import OpenEnvEnvironment
from slipstream.config.problem import Problem
from slipstream.records import has_surrogates
from slipstream.telemetry.logs import Log

KEY = "data.environment"
FENCE = "```"


class TextTokens(Protocol):
    """Turns texts into tokens, and tokens into text."""

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text, without special tokens at its ends."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""

    def harmless(self, text: str) -> str:
        """Return the text with a space inside each spelled-out special token, and without lone surrogates."""


class Address(Protocol):
    """Where the server is."""

    async def __call__(self) -> str:
        """Return the address of the server, which listens."""


class OpenEnv:
    """Plays episodes on one server, at most `sessions` of them at a time."""

    def __init__(self, config: OpenEnvEnvironment, *, address: Address, tokens: TextTokens) -> None:
        self._config = config
        self._address = address
        self._tokens = tokens
        self._places = asyncio.Semaphore(config.sessions)

    async def run(self, episode: Episode) -> None:
        """See Environment. Gives the rewards `OpenEnvEnvironment.reward_names`."""
        arguments = reset_arguments(self._config, episode.prompt.fields)
        with episode.waiting():
            await self._places.acquire()
        try:
            async with begun_session(await self._address(), arguments) as (session, first):
                await self._play(episode, session, first)
        finally:
            self._places.release()

    async def _play(self, episode: Episode, session: Session, step: Step) -> None:
        game = Game(config=self._config, episode=episode, session=session, tokens=self._tokens)
        try:
            await game.play(step)
        finally:
            episode.rewards.update(game.values())


@dataclass(slots=True, kw_only=True)
class Game:
    """One episode on one session."""

    config: OpenEnvEnvironment
    episode: Episode
    session: Session
    tokens: TextTokens
    total: float = 0.0
    last: float = 0.0
    refused: int = 0
    done: bool = False

    async def play(self, first: Step) -> None:
        """Let the policy act until the environment is done. Errors: EpisodeFull, OpenEnvFailed."""
        segment = self._begin(first)
        self.done = first.done
        while not self.done:
            turn = await self.episode.sample_in(segment)
            text = await self._act(self.tokens.decode(turn.token_ids))
            if not self.done:
                self.episode.observe_in(segment, self.tokens.encode_text(text))

    def values(self) -> dict[str, float]:
        """Return the rewards so far."""
        return {
            "total_reward": self.total,
            "last_reward": self.last,
            "finished": float(self.done),
            "refused_actions": float(self.refused),
        }

    def _begin(self, first: Step) -> Transcript:
        text = self._filled(self.config.start, first)
        if not text:
            return self.episode.segments[0]
        prompt = self.episode.prompt_token_ids
        return self.episode.begin_segment((*prompt, *self.tokens.encode_text(text)))

    async def _act(self, text: str) -> str:
        """Take the action of a turn, and return the text that follows the turn."""
        try:
            step = await self.session.step(read_action(text, self.config.action_field))
        except ActionRefused as error:
            self.refused += 1
            return fill(self.config.refused, {"error": self.tokens.harmless(str(error))})
        self.total += step.reward
        self.last, self.done = step.reward, step.done
        return self._filled(self.config.observation, step)

    def _filled(self, text: str, step: Step) -> str:
        values = {**step.observation, "observation": dict(step.observation), "reward": step.reward}
        return fill(text, {name: self.tokens.harmless(shown(value)) for name, value in values.items()})


def reset_arguments(config: OpenEnvEnvironment, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `reset` for a row. Errors: OpenEnvFailed for a column that the row has not."""
    missing = [name for name in config.reset_fields if name not in fields]
    if missing:
        has = ", ".join(sorted(fields)) or "none"
        raise OpenEnvFailed(f"the row has no column {missing[0]!r} ({KEY}.reset_fields); it has: {has}")
    return {**config.reset, **{name: _read(fields[name]) for name in config.reset_fields}}


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def read_action(text: str, field: str | None) -> dict[str, Any]:
    """Return the action of a turn. `field`: the field that the text is; None: the text is JSON, perhaps in a
    fenced block.

    Errors: ActionRefused.
    """
    text = text.strip()
    if field is not None:
        return {field: text}
    if text.startswith(FENCE) and text.endswith(FENCE) and "\n" in text:
        text = text.partition("\n")[2].removesuffix(FENCE)
    try:
        action = json.loads(text)
        is_nested = is_deep(action, MOST_LEVELS)
    except RecursionError:
        is_nested = True
    except ValueError as error:
        raise ActionRefused(f"the action is no JSON: {error}") from error
    if is_nested:
        raise ActionRefused(f"the action is nested more than {MOST_LEVELS} levels deep")
    if not isinstance(action, dict):
        raise ActionRefused(f"the action is a JSON {type(action).__name__}, and must be an object")
    if has_surrogates(json.dumps(action, ensure_ascii=False)):
        raise ActionRefused("the action has characters that are no valid Unicode")
    return action


def shown(value: Any) -> str:
    """Return a value of an observation as text: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the values in its braces. Errors: OpenEnvFailed for a field that there is not."""
    try:
        return text.format_map(dict(values))
    except KeyError as error:
        there = ", ".join(values)
        raise OpenEnvFailed(f"the observation has no field {error} for {text!r}; it has: {there}") from error


@asynccontextmanager
async def open_openenv(config: OpenEnvEnvironment, *, tokens: TextTokens, log: Log) -> AsyncIterator[OpenEnv]:
    """Start or find the server, compare the configuration with its schema, and stop a started one at the end.

    Errors: ConfigError with the key at fault.
    """
    async with _address(config, log) as address:
        try:
            url = await address()
        except ServerFailed as error:
            problem = Problem(
                key=f"{KEY}.command", reason=str(error), remedy="run the command in a shell to see why"
            )
            raise ConfigError(str(problem), [problem]) from error
        await check_against_schema(url, config, seconds=config.start_seconds)
        yield OpenEnv(config, address=address, tokens=tokens)


@asynccontextmanager
async def _address(config: OpenEnvEnvironment, log: Log) -> AsyncIterator[Address]:
    if config.command is None:
        yield partial(_constant, config.url or "")
        return
    server = LocalServer(config.command, env=config.env, start_seconds=config.start_seconds, log=log)
    try:
        yield server.url
    finally:
        await server.close()


async def _constant(url: str) -> str:
    return url
