"""Opens the environment that a run names; each kind is one branch of `open_environment`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from slipstream.actor.chat_tools import open_chat_tools
from slipstream.actor.environment import Environment, SingleTurn
from slipstream.actor.own_environment import load_environment
from slipstream.actor.tools.make_tools import ToolResources
from slipstream.actor.tools.program_client import ProgramClient
from slipstream.config import RunConfig
from slipstream.config.environments import (
    ChatToolsEnvironment,
    CustomEnvironment,
    EnvironmentConfig,
    ProgramEnvironment,
    SingleTurnEnvironment,
)
from slipstream.config.openenv import OpenEnvEnvironment
from slipstream.config.verifiers import VerifiersEnvironment
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentResources:
    """What environments share with the rest of the actor."""

    config: RunConfig
    tokens: Tokens
    verifier: grpc.aio.Channel
    """Channel to the verifier, in whose pods the sandbox is."""
    metrics: Metrics
    log: Log


@asynccontextmanager
async def open_environment(
    config: EnvironmentConfig, resources: EnvironmentResources
) -> AsyncIterator[Environment]:
    """Make an environment, with its servers and child processes, and close it at the end.

    Errors: ConfigError with the key at fault.
    """
    match config:
        case SingleTurnEnvironment():
            yield SingleTurn()
        case CustomEnvironment():
            yield load_environment(config)
        case ChatToolsEnvironment():
            async with open_chat_tools(config, resources.tokens, _of_tools(resources)) as tools:
                yield tools
        case OpenEnvEnvironment():
            from slipstream.actor.adapters.openenv import open_openenv  # websockets is an extra

            async with open_openenv(config, tokens=resources.tokens, log=resources.log) as environment:
                yield environment
        case ProgramEnvironment():
            async with _programs(config, resources) as programs:
                yield programs
        case VerifiersEnvironment():
            async with _verifiers(config, resources) as environment:
                yield environment


def _of_tools(resources: EnvironmentResources) -> ToolResources:
    return ToolResources(
        programs=ProgramClient(resources.verifier, resources.config),
        metrics=resources.metrics,
        log=resources.log,
    )


@asynccontextmanager
async def _programs(
    config: ProgramEnvironment, resources: EnvironmentResources
) -> AsyncIterator[Environment]:
    from slipstream.actor.program.open import open_programs  # FastAPI, which the other kinds do without

    async with open_programs(
        config,
        tokens=resources.tokens,
        temperature=resources.config.rollout.temperature,
        seed=resources.config.seed,
        run_folder=Path.cwd(),
        metrics=resources.metrics,
        log=resources.log,
    ) as programs:
        yield programs


@asynccontextmanager
async def _verifiers(
    config: VerifiersEnvironment, resources: EnvironmentResources
) -> AsyncIterator[Environment]:
    from slipstream.actor.adapters.verifiers import Verifiers, started_process
    from slipstream.actor.program.open import open_endpoint  # FastAPI, as above

    opened = open_endpoint(
        config,
        tokens=resources.tokens,
        temperature=resources.config.rollout.temperature,
        metrics=resources.metrics,
        log=resources.log,
    )
    async with started_process(config, log=resources.log) as process, opened as (sessions, url):
        yield Verifiers(config, process=process, sessions=sessions, url=url)
