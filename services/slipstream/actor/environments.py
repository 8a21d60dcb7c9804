"""Opens the environment that a run names; each kind is one branch of `open_environment`."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import grpc

from slipstream.actor import chat_tools, own_environment
from slipstream.actor.environment import BoundEnvironment, Environment, SingleTurn
from slipstream.actor.tools import make_tools, python_tool
from slipstream.config import ConfigError, RunConfig
from slipstream.config.environments import (
    ChatToolsEnvironment,
    CustomEnvironment,
    EnvironmentConfig,
    ProgramEnvironment,
    SingleTurnEnvironment,
)
from slipstream.config.openenv import OpenEnvEnvironment
from slipstream.config.sources import BySource, Source, sources
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
async def open_environments(resources: EnvironmentResources) -> AsyncIterator[BySource[BoundEnvironment]]:
    """Make the environment of each source, and close all at the end. Sources share one of equal settings.

    Errors: ConfigError with the key at fault.
    """
    async with AsyncExitStack() as stack:
        opened: list[tuple[EnvironmentConfig, BoundEnvironment]] = []
        values: dict[str, BoundEnvironment] = {}
        for source in sources(resources.config):
            bound = next((each for config, each in opened if config == source.environment), None)
            if bound is None:
                bound = await _open_bound(source, resources, stack)
                opened.append((source.environment, bound))
            values[source.name] = bound
        yield BySource(values)


async def _open_bound(
    source: Source, resources: EnvironmentResources, stack: AsyncExitStack
) -> BoundEnvironment:
    try:
        environment = await stack.enter_async_context(open_environment(source.environment, resources))
    except ConfigError as error:
        problems = [replace(each, key=_key_in(source, each.key)) for each in error.problems]
        raise ConfigError("\n".join(map(str, problems)), problems) from error
    bounds = own_environment.episode_bounds(
        source.environment,
        max_new_tokens=resources.config.rollout.max_new_tokens,
        context_tokens=resources.tokens.context_tokens,
    )
    return BoundEnvironment(environment=environment, bounds=bounds)


def _key_in(source: Source, key: str) -> str:
    """Return the key of an environment's problem, which is that of a run with one source."""
    return (
        source.environment_key + key.removeprefix(own_environment.KEY)
        if key.startswith(own_environment.KEY)
        else key
    )


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
            yield own_environment.load_environment(config)
        case ChatToolsEnvironment():
            async with chat_tools.open_chat_tools(config, resources.tokens, _of_tools(resources)) as tools:
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


def _of_tools(resources: EnvironmentResources) -> make_tools.ToolResources:
    return make_tools.ToolResources(
        programs=python_tool.ProgramClient(resources.verifier, resources.config),
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
