"""The tools of an MCP server in episodes: what the policy reads of them, and of their results."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for
from mcp import MCPError
from mcp_types import INVALID_PARAMS, CallToolResult, EmbeddedResource, TextContent, TextResourceContents
from mcp_types import Tool as Listed

from slipstream.actor.adapters.local_server import ServerFailed
from slipstream.actor.chat import messages, template
from slipstream.actor.chat.tools import EpisodeTool, Outcome, ToolUnusable
from slipstream.actor.environment import Episode
from slipstream.actor.internal_errors import is_internal
from slipstream.actor.tools import mcp_connection, mcp_http, mcp_process
from slipstream.config.mcp import McpTools
from slipstream.telemetry import background, logs

NO_OUTPUT = "(no output)"
UNAVAILABLE = "[the tool could not be reached, and not by fault of the call; it may work again later]"
MOST_DEPTH = 64
"""Most levels of nesting in the arguments of a call."""


class McpToolbox:
    """The tools of one server; a Toolbox."""

    def __init__(
        self,
        config: McpTools,
        schemas: Sequence[template.Tool],
        shared: mcp_connection.McpConnection | None,
        *,
        log: logs.Log,
    ) -> None:
        """`shared`: the connection of all episodes; None: each episode gets a server of its own."""
        self.schemas = schemas
        self._config = config
        self._shared = shared
        self._log = log
        self._places = asyncio.Semaphore(config.most_servers)

    @asynccontextmanager
    async def opened(self, episode: Episode) -> AsyncIterator[Mapping[str, EpisodeTool]]:
        """See Toolbox."""
        if self._shared is not None:
            yield self._tools(self._shared)
            return
        with episode.waiting():
            await self._places.acquire()
        connection = connection_of(self._config, log=self._log)
        try:
            yield self._tools(connection)
        finally:
            try:
                await connection.close()
            finally:
                self._places.release()

    def _tools(self, connection: mcp_connection.McpConnection) -> dict[str, EpisodeTool]:
        names = (schema["function"]["name"] for schema in self.schemas)
        seconds = self._config.seconds
        return {name: McpTool(name, connection, seconds=seconds, log=self._log) for name in names}


class McpTool:
    """A tool of a server in one episode.

    Invariant: whatever the policy asks for and the server answers, the answer is a text.
    """

    def __init__(
        self, name: str, connection: mcp_connection.McpConnection, *, seconds: float, log: logs.Log
    ) -> None:
        self._name = name
        self._connection = connection
        self._seconds = seconds
        self._log = log
        self._checks: set[background.BackgroundTask[None]] = set()

    async def answer(self, arguments: Mapping[str, Any]) -> tuple[Outcome, str]:
        """Call the tool, and return its result as text, or why there is none."""
        if why := unsendable(arguments):
            return "arguments", f"Error: wrong arguments: {why}"
        try:
            result = await self._connection.call(self._name, arguments, seconds=self._seconds)
        except ServerFailed as error:
            self._log.warning("tool failed", tool=self._name, error=str(error))
            return "unavailable", UNAVAILABLE
        except TimeoutError:
            check = self._connection.answers(seconds=self._seconds)
            background.BackgroundTask.begin(check, "check of a tool server", self._log).keep_in(self._checks)
            return "timeout", f"Error: the call took more than {self._seconds:g} s"
        except MCPError as error:
            refused = error.code == INVALID_PARAMS
            return "arguments" if refused else "failed", f"Error: {error.error.message}"
        except Exception as error:  # a server may answer anything
            if is_internal(error):
                raise
            reason = f"{type(error).__name__}: {error}"
            self._log.warning("a tool answered what is no result", tool=self._name, error=reason)
            return "failed", f"Error: the tool answered what is no result: {type(error).__name__}"
        text = text_of(result)
        return ("failed", f"Error: {text}") if result.is_error else ("ok", text)


def text_of(result: CallToolResult) -> str:
    """Return a result as text: its texts, and the type of each other part in brackets."""
    parts = [_part(part) for part in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts) or NO_OUTPUT


def _part(part: Any) -> str:
    if isinstance(part, TextContent):
        return part.text
    if isinstance(part, EmbeddedResource) and isinstance(part.resource, TextResourceContents):
        return part.resource.text
    media = getattr(part, "mime_type", None)
    return f"[{part.type} {media}]" if media else f"[{part.type}]"


def unsendable(arguments: Mapping[str, Any]) -> str:
    """Return why arguments cannot be sent as JSON; empty if they can be."""
    if messages.is_deep(arguments, MOST_DEPTH):
        return f"they are nested more than {MOST_DEPTH} levels deep"
    try:
        json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "they have characters that are no valid Unicode"
    except ValueError:
        return "NaN and Infinity are no numbers of JSON"
    return ""


def schema_of(tool: Listed) -> template.Tool:
    """Return a tool as chat templates take it. Errors: ToolUnusable for a schema that is none."""
    parameters = tool.input_schema
    try:
        validator_for(parameters).check_schema(parameters)
        reason = "" if parameters.get("type") == "object" else "its type is not `object`"
    except SchemaError as error:
        reason = f"{error.message} ({'/'.join(map(str, error.absolute_path)) or 'schema'})"
    except Exception as error:  # such as RecursionError, for a schema that refers to itself
        reason = f"{type(error).__name__}: {error}"
    if reason:
        raise ToolUnusable(
            f"the schema of the tool {tool.name} is no schema of arguments: {reason}",
            "correct the server, or leave the tool out of `allow`",
        )
    described = {"description": tool.description} if tool.description else {}
    function = {"name": tool.name, **described, "parameters": parameters}
    return {"type": "function", "function": function}


def allowed(tools: Sequence[Listed], allow: Sequence[str] | None) -> list[Listed]:
    """Return the tools that the configuration allows. Errors: ToolUnusable."""
    names = [tool.name for tool in tools]
    if not tools:
        raise ToolUnusable("the server has no tools", "correct the server, or leave it out")
    if missing := [name for name in allow or () if name not in names]:
        raise ToolUnusable(
            f"`allow` names {missing[0]!r}, and the server has no such tool",
            f"name some of {', '.join(names)}",
        )
    kept = [tool for tool in tools if allow is None or tool.name in allow]
    if len(kept) > mcp_connection.MOST_TOOLS:
        raise ToolUnusable(
            f"the server has {len(kept)} tools, and the policy reads at most {mcp_connection.MOST_TOOLS}",
            "set `allow`",
        )
    return kept


def connection_of(config: McpTools, *, log: logs.Log) -> mcp_connection.McpConnection:
    """Return a connection that is not open yet."""
    server: mcp_connection.Server
    if config.command is not None:
        server = mcp_process.ServerProcess(config.command, env=config.env)
    else:
        server = mcp_http.ServerAtUrl(config.url or "", seconds=max(config.seconds, config.start_seconds))
    return mcp_connection.McpConnection(server, start_seconds=config.start_seconds, log=log)


@asynccontextmanager
async def open_toolbox(config: McpTools, *, log: logs.Log) -> AsyncIterator[McpToolbox]:
    """Start or reach a server, and yield its tools; end it afterwards. Errors: ServerFailed, ToolUnusable."""
    connection = connection_of(config, log=log)
    try:
        schemas = [schema_of(tool) for tool in allowed(await connection.tools(), config.allow)]
        if config.per_episode:
            await connection.close()
        yield McpToolbox(config, schemas, None if config.per_episode else connection, log=log)
    finally:
        await connection.close()
