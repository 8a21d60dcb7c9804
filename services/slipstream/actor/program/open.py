"""Opens the environment `program`: the endpoint of an actor, and what runs the programs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from slipstream.actor.chat.template import ChatTemplate
from slipstream.actor.program import command, environment
from slipstream.actor.program.endpoint import Endpoint, serve
from slipstream.actor.program.sessions import Sessions
from slipstream.config import ConfigError, environments, verifiers
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import Tokens


@asynccontextmanager
async def open_programs(
    config: environments.ProgramEnvironment,
    *,
    tokens: Tokens,
    temperature: float,
    seed: int,
    run_folder: Path,
    metrics: Metrics,
    log: Log,
) -> AsyncIterator[environment.Programs]:
    """Serve the endpoint until the context ends. Errors: ConfigError for a program that does not exist."""
    problem = command.missing_program(config, run_folder)
    if problem is not None:
        raise ConfigError(str(problem), [problem])
    opened = open_endpoint(config, tokens=tokens, temperature=temperature, metrics=metrics, log=log)
    async with opened as (sessions, url):
        yield environment.Programs(
            config, sessions, url=url, seed=seed, run_folder=run_folder, metrics=metrics, log=log
        )


@asynccontextmanager
async def open_endpoint(
    config: environments.ProgramEnvironment | verifiers.VerifiersEnvironment,
    *,
    tokens: Tokens,
    temperature: float,
    metrics: Metrics,
    log: Log,
) -> AsyncIterator[tuple[Sessions, str]]:
    """Serve the endpoint of an actor until the context ends; yield its sessions and its URL."""
    template = ChatTemplate(tokens, keep_thoughts=config.keep_thoughts) if tokens.chat_template else None
    sessions = Sessions(tokens=tokens, template=template, most_requests=config.most_requests)
    endpoint = Endpoint(
        sessions,
        spell=tokens.decode_with_special,
        temperature=temperature,
        refuse=config.sampling == "refuse",
        request_kib=config.request_kib,
        metrics=metrics,
        log=log,
    )
    async with serve(endpoint, log) as url:
        yield sessions, url
