"""The environment `openenv`: the turns of the policy are the actions of an OpenEnv environment.

    prompt + start          what the first turn follows: the prompt of the row, and the observation of `reset`
    turn -> action          JSON, or the text as one field of the action
    observation             the text between two turns, from the observation of `step`

An action that has not the form of the environment's actions is answered with `refused`, and costs a turn. Any
other failure of the server withholds the completion. At the start `check_against_schema` compares the fields
that the configuration names with the schema of the server.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from urllib.request import ProxyHandler, Request, build_opener

from slipstream.actor import environment, transcript
from slipstream.actor.adapters import local_server, openenv_session
from slipstream.actor.adapters.openenv_session import is_loopback
from slipstream.actor.chat.messages import MOST_LEVELS, is_deep
from slipstream.config import ConfigError, Problem
from slipstream.config.openenv import PLACEHOLDERS, OpenEnvEnvironment, template_fields
from slipstream.records import has_surrogates
from slipstream.telemetry.logs import Log

KEY = "data.environment"
FENCE = "```"
POLL_SECONDS = 0.5
MOST_BYTES = 4 * 1024 * 1024
TRY_SECONDS = 10.0


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

    async def run(self, episode: environment.Episode) -> None:
        """See Environment. Gives the rewards `OpenEnvEnvironment.reward_names`."""
        arguments = reset_arguments(self._config, episode.prompt.fields)
        with episode.waiting():
            await self._places.acquire()
        try:
            async with openenv_session.begun_session(await self._address(), arguments) as (session, first):
                await self._play(episode, session, first)
        finally:
            self._places.release()

    async def _play(
        self, episode: environment.Episode, session: openenv_session.Session, step: openenv_session.Step
    ) -> None:
        game = Game(config=self._config, episode=episode, session=session, tokens=self._tokens)
        try:
            await game.play(step)
        finally:
            episode.rewards.update(game.values())


@dataclass(slots=True, kw_only=True)
class Game:
    """One episode on one session."""

    config: OpenEnvEnvironment
    episode: environment.Episode
    session: openenv_session.Session
    tokens: TextTokens
    total: float = 0.0
    last: float = 0.0
    refused: int = 0
    done: bool = False

    async def play(self, first: openenv_session.Step) -> None:
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

    def _begin(self, first: openenv_session.Step) -> transcript.Transcript:
        text = self._filled(self.config.start, first)
        if not text:
            return self.episode.segments[0]
        prompt = self.episode.prompt_token_ids
        return self.episode.begin_segment((*prompt, *self.tokens.encode_text(text)))

    async def _act(self, text: str) -> str:
        """Take the action of a turn, and return the text that follows the turn."""
        try:
            step = await self.session.step(read_action(text, self.config.action_field))
        except openenv_session.ActionRefused as error:
            self.refused += 1
            return fill(self.config.refused, {"error": self.tokens.harmless(str(error))})
        self.total += step.reward
        self.last, self.done = step.reward, step.done
        return self._filled(self.config.observation, step)

    def _filled(self, text: str, step: openenv_session.Step) -> str:
        values = {**step.observation, "observation": dict(step.observation), "reward": step.reward}
        return fill(text, {name: self.tokens.harmless(shown(value)) for name, value in values.items()})


def reset_arguments(config: OpenEnvEnvironment, fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `reset` for a row. Errors: OpenEnvFailed for a column that the row has not."""
    missing = [name for name in config.reset_fields if name not in fields]
    if missing:
        has = ", ".join(sorted(fields)) or "none"
        raise openenv_session.OpenEnvFailed(
            f"the row has no column {missing[0]!r} ({KEY}.reset_fields); it has: {has}"
        )
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
        raise openenv_session.ActionRefused(f"the action is no JSON: {error}") from error
    if is_nested:
        raise openenv_session.ActionRefused(f"the action is nested more than {MOST_LEVELS} levels deep")
    if not isinstance(action, dict):
        raise openenv_session.ActionRefused(
            f"the action is a JSON {type(action).__name__}, and must be an object"
        )
    if has_surrogates(json.dumps(action, ensure_ascii=False)):
        raise openenv_session.ActionRefused("the action has characters that are no valid Unicode")
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
        raise openenv_session.OpenEnvFailed(
            f"the observation has no field {error} for {text!r}; it has: {there}"
        ) from error


@asynccontextmanager
async def open_openenv(config: OpenEnvEnvironment, *, tokens: TextTokens, log: Log) -> AsyncIterator[OpenEnv]:
    """Start or find the server, compare the configuration with its schema, and stop a started one at the end.

    Errors: ConfigError with the key at fault.
    """
    async with _address(config, log) as address:
        try:
            url = await address()
        except local_server.ServerFailed as error:
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
    server = local_server.LocalServer(
        config.command, env=config.env, start_seconds=config.start_seconds, log=log
    )
    try:
        yield server.url
    finally:
        await server.close()


async def _constant(url: str) -> str:
    return url


async def check_against_schema(url: str, config: OpenEnvEnvironment, *, seconds: float) -> None:
    """Wait until the server answers, and compare. Errors: ConfigError with the keys at fault."""
    problems = list(schema_problems(await _schema(url, config, seconds=seconds), config))
    if problems:
        raise ConfigError("\n".join(map(str, problems)), problems)


def schema_problems(schema: Mapping[str, Any], config: OpenEnvEnvironment) -> Iterator[Problem]:
    """Yield a problem for each field that the configuration names and the schema lacks.

    A schema that allows further fields has no missing ones; an environment of tools has such a schema.
    """
    action, observation = _fields(schema.get("action")), _fields(schema.get("observation"))
    if config.action_field is not None and action and config.action_field not in action:
        yield _unknown("action_field", config.action_field, "an action", action)
    at_reset = _fields(schema.get("reset_observation")) or observation
    for key, fields in (("start", at_reset), ("observation", observation), ("refused", {"error"})):
        names = template_fields(getattr(config, key)) - PLACEHOLDERS[key]
        for name in sorted(names - set(fields)) if fields else ():
            yield _unknown(key, name, "an observation", {*fields, *PLACEHOLDERS[key]})


def _unknown(key: str, name: str, of: str, fields: Collection[str]) -> Problem:
    return Problem(
        key=f"{KEY}.{key}",
        reason=f"names the field {name!r}, and {of} of this environment has none of this name",
        remedy=f"its fields are: {', '.join(sorted(fields))}",
    )


def _fields(schema: Any) -> set[str]:
    """Return the names of the fields of a JSON schema; none if it has none, or allows any."""
    if not isinstance(schema, dict) or schema.get("additionalProperties") is True:
        return set()
    return set(schema.get("properties") or {}) - {"metadata", "reward", "done"}


async def _schema(url: str, config: OpenEnvEnvironment, *, seconds: float) -> Mapping[str, Any]:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        try:
            return await asyncio.to_thread(_fetched, f"{url.rstrip('/')}/schema")
        except (OSError, ValueError) as error:
            if loop.time() > deadline:
                problem = Problem(
                    key=f"{KEY}.{'command' if config.url is None else 'url'}",
                    reason=f"{url} does not answer as an OpenEnv server after {seconds:g} s: {error}",
                    remedy="start the server first, correct the address, or raise start_seconds",
                )
                raise ConfigError(str(problem), [problem]) from error
        await asyncio.sleep(POLL_SECONDS)


def _fetched(url: str) -> Mapping[str, Any]:
    """Return the JSON object at an address. Errors: OSError, ValueError."""
    opener = build_opener(ProxyHandler({})) if is_loopback(url) else build_opener()
    with opener.open(Request(url), timeout=TRY_SECONDS) as answer:
        schema = json.loads(answer.read(MOST_BYTES))
    if not isinstance(schema, dict):
        raise ValueError(f"{url} is no schema: {str(schema)[:100]}")
    return schema
