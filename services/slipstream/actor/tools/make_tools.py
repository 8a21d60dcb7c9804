"""Makes the tools of the environment `chat_tools`: functions of the user, `python`, and those of servers."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec

from slipstream.actor.adapters.local_server import ServerFailed
from slipstream.actor.chat.template import Tool
from slipstream.actor.chat.tools import OwnTool, SingleTool, Toolbox, ToolUnusable
from slipstream.actor.own_environment import KEY, EnvironmentUnusable
from slipstream.actor.tools.python_tool import ProgramRunner, ProgramTool
from slipstream.config import environments, mcp, problem
from slipstream.functions import FunctionMissing, load_function
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResources:
    """What tools share with the rest of the actor."""

    programs: ProgramRunner
    """Runs the programs of the tool `python`."""
    metrics: Metrics
    log: Log


Servers = Mapping[int, Toolbox]
"""Position of a tool in the configuration → the tools of its server."""


@asynccontextmanager
async def open_servers(config: environments.ChatToolsEnvironment, log: Log) -> AsyncIterator[Servers]:
    """Start the tool servers of an environment, and end them with the context.

    Errors: EnvironmentUnusable.
    """
    servers: dict[int, Toolbox] = {}
    async with AsyncExitStack() as stack:
        for position, each in enumerate(config.tools):
            if isinstance(each, mcp.McpTools):
                servers[position] = await _opened(stack, each, f"{KEY}.tools.{position}", log)
        yield servers


async def _opened(stack: AsyncExitStack, config: mcp.McpTools, key: str, log: Log) -> Toolbox:
    if find_spec("mcp") is None:
        remedy = "pip install '.[mcp]' in a clone of Slipstream"
        raise unusable(f"{key}.kind", "is `mcp`, and the package mcp is not installed", remedy)
    from slipstream.actor.tools.mcp_tools import open_toolbox  # the package is an extra

    where = f"{key}.{'url' if config.command is None else 'command'}"
    try:
        return await stack.enter_async_context(open_toolbox(config, log=log))
    except ServerFailed as error:
        remedy = (
            "run the command in a shell to see why" if config.command else "start the server, or correct it"
        )
        raise unusable(where, f"the tools of the server cannot be read: {error}", remedy) from error
    except ToolUnusable as error:
        raise unusable(key, error.reason, error.remedy) from error


def make_tools(
    config: environments.ChatToolsEnvironment, resources: ToolResources, servers: Servers
) -> list[Toolbox]:
    """Make the tools. Errors: EnvironmentUnusable."""
    toolboxes: list[Toolbox] = []
    names: set[str] = set()
    for position, each in enumerate(config.tools):
        key = f"{KEY}.tools.{position}.{_naming_key(each)}"
        toolbox = servers[position] if isinstance(each, mcp.McpTools) else _make_tool(each, key, resources)
        for name in map(name_of, toolbox.schemas):
            if name in names:
                reason = f"is the second tool with the name {name}"
                raise unusable(key, reason, "name one of the two otherwise, or leave it out of `allow`")
            names.add(name)
        toolboxes.append(toolbox)
    return toolboxes


def name_of(schema: Tool) -> str:
    """Return the name by which the policy calls a tool."""
    name: str = schema["function"]["name"]
    return name


def _naming_key(config: environments.ToolConfig) -> str:
    """Return the key that settles the name of a tool."""
    if isinstance(config, mcp.McpTools):
        return "allow"
    return "function" if isinstance(config, environments.FunctionTool) else "name"


def _make_tool(
    config: environments.FunctionTool | environments.PythonTool, key: str, resources: ToolResources
) -> Toolbox:
    if isinstance(config, environments.PythonTool):
        return SingleTool(ProgramTool(config, resources.programs, log=resources.log))
    try:
        return SingleTool(OwnTool(load_function(config.function), seconds=config.seconds, log=resources.log))
    except FunctionMissing as error:
        remedy = error.remedy or "name a function as package.module:name"
        raise unusable(key, error.reason, remedy) from error
    except ToolUnusable as error:
        raise unusable(key, error.reason, error.remedy) from error
    except Exception as error:  # a user's module may raise anything
        reason = f"{config.function} cannot be imported: {type(error).__name__}: {error}"
        raise unusable(key, reason, "correct the module") from error


def unusable(key: str, reason: str, remedy: str) -> EnvironmentUnusable:
    """Return the error of a key."""
    return EnvironmentUnusable(problem.Problem(key=key, reason=" ".join(reason.split()), remedy=remedy))
