"""Compares the texts and the action of a configuration with the schema that an OpenEnv server publishes."""

import asyncio
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

from slipstream.actor.adapters.openenv_session import is_loopback
from slipstream.config import ConfigError
from slipstream.config.openenv import PLACEHOLDERS, OpenEnvEnvironment, template_fields
from slipstream.config.problem import Problem

KEY = "data.environment"
POLL_SECONDS = 0.5
MOST_BYTES = 4 * 1024 * 1024
TRY_SECONDS = 10.0


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
