"""Tools that the policy may call, and functions of the user as tools, with a schema of their signature.

A sync function runs in a thread of its own, which cannot be stopped: after its time the policy goes on
without the result. At most MOST_THREADS run at a time, so that functions that hang do not use up the actor.
"""

import asyncio
import inspect
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Literal, Protocol, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError, validate_call

from slipstream.actor.chat.template import Tool
from slipstream.actor.environment import Episode
from slipstream.actor.own_code import END_SECONDS, described, located, uninterrupted
from slipstream.records import Prompt
from slipstream.rpc.errors import SlipstreamError
from slipstream.telemetry.logs import Log

MOST_THREADS = 64
LOG_SECONDS = 30.0
"""Shortest time between two lines of the log about a failing tool."""
Outcome = Literal["ok", "failed", "timeout", "arguments", "unavailable"]
"""How a call of a tool ended; `unavailable`: by no fault of the call."""


class ToolUnusable(ValueError):
    """A function cannot be a tool."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason, self.remedy = reason, remedy


class ArgumentsRefused(ValueError):
    """The arguments of a call do not fit the signature of the tool."""


class CallTooSlow(Exception):
    """A call took longer than its time."""


class NoThread(SlipstreamError):
    """This process can start no further thread."""


class EpisodeTool(Protocol):
    """A tool in one episode."""

    async def answer(self, arguments: Mapping[str, Any]) -> tuple[Outcome, str]:
        """Return how the call ended, and the text that the policy reads."""


class AnyTool(Protocol):
    """A tool that is offered to the policy."""

    name: str
    schema: Tool

    def for_episode(self, prompt: Prompt) -> EpisodeTool:
        """Return the tool for an episode on a prompt."""


class Toolbox(Protocol):
    """Tools that an episode opens and closes together."""

    @property
    def schemas(self) -> Sequence[Tool]:
        """The tools as chat templates take them."""

    def opened(self, episode: Episode) -> AbstractAsyncContextManager[Mapping[str, EpisodeTool]]:
        """Return a context that yields the tools for an episode by name."""


class SingleTool:
    """A toolbox of one tool, which holds nothing open."""

    def __init__(self, tool: AnyTool) -> None:
        self.schemas = (tool.schema,)
        self._tool = tool

    @asynccontextmanager
    async def opened(self, episode: Episode) -> AsyncIterator[Mapping[str, EpisodeTool]]:
        """See Toolbox."""
        yield {self._tool.name: self._tool.for_episode(episode.prompt)}


class OwnTool:
    """A function of the user. Its annotations check the arguments of a call."""

    def __init__(self, function: Callable[..., Any], *, seconds: float, log: Log) -> None:
        """Errors: ToolUnusable."""
        self.schema: Tool = tool_schema(function)
        self.name: str = self.schema["function"]["name"]
        self.seconds = seconds
        self._function = function
        self._checked = validate_call(function)
        self._log = log
        self._next_log = 0.0
        self._threads = asyncio.Semaphore(MOST_THREADS)

    def for_episode(self, prompt: Prompt) -> EpisodeTool:
        """Return this tool: a function is the same for all episodes."""
        return self

    async def answer(self, arguments: Mapping[str, Any]) -> tuple[Outcome, str]:
        """Return how the call ended, and the text that the policy reads."""
        try:
            return "ok", await self.call(arguments)
        except CallTooSlow as error:
            return "timeout", f"Error: {error}"
        except ArgumentsRefused as error:
            return "arguments", f"Error: wrong arguments: {error}"
        except NoThread as error:
            self._warn("tool failed", str(error))
            return "unavailable", "Error: the tool is not available now"
        except Exception as error:  # the tool is the user's, and may raise anything
            self._warn("tool failed", located(error))
            return "failed", f"Error: {described(error)}"

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """Return the result as text; a value that is no text as JSON.

        Errors: ArgumentsRefused, CallTooSlow, and those of the function.
        """
        bound = asyncio.timeout(self.seconds)
        try:
            async with bound:
                result = await self._result(arguments)
        except ValidationError as error:
            raise ArgumentsRefused(_faults(error)) from error
        except TimeoutError as error:
            if bound.expired():
                raise CallTooSlow(f"the call took more than {self.seconds:g} s") from error
            raise
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)

    def _warn(self, event: str, error: str) -> None:
        """Log an event, unless another one was logged shortly before."""
        now = time.monotonic()
        if now >= self._next_log:
            self._next_log = now + LOG_SECONDS
            self._log.warning(event, tool=self.name, error=error)

    async def _result(self, arguments: Mapping[str, Any]) -> Any:
        if inspect.iscoroutinefunction(self._function):
            dropped = partial(self._warn, "tool dropped", "it did not end when it was cancelled")
            work = self._checked(**arguments)
            return await uninterrupted(work, end_seconds=END_SECONDS, on_dropped=dropped)
        await self._threads.acquire()
        return await in_daemon_thread(lambda: self._checked(**arguments), self._threads.release)


def in_daemon_thread(function: Callable[[], Any], ended: Callable[[], None]) -> Awaitable[Any]:
    """Return the result of a function that runs in a thread, which does not keep the process from its end.

    `ended` is called in the event loop when the thread ends, also if nobody waits any more.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        ended()
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result: Any = None
        error: Exception | None = None
        try:
            result = function()
        except StopIteration as raised:  # a future cannot hold it
            error = RuntimeError(described(raised))
        except Exception as raised:  # the function is the user's, and may raise anything
            error = raised
        except BaseException as raised:  # such as SystemExit, which would end the event loop
            error = RuntimeError(described(raised))
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    try:
        threading.Thread(target=work, name="tool", daemon=True).start()
    except RuntimeError as error:
        ended()
        raise NoThread(f"no thread for a call: {error}") from error
    return future


def tool_schema(function: Callable[..., Any]) -> Tool:
    """Return what the policy reads of a function: name, docstring, and the types of its parameters.

    A description of a parameter is that of `Annotated[int, Field(description="..")]`. Errors: ToolUnusable.
    """
    name = getattr(function, "__name__", "")
    description = inspect.getdoc(function) if inspect.isroutine(function) else None
    if not name or not description:
        raise ToolUnusable(
            f"the function {name or function} has no docstring", "write in it what the tool does"
        )
    _require_types(function, name)
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(cast(Any, function))
        parameters = adapter.json_schema()
    except Exception as error:  # pydantic and the user's types may raise anything
        reason = f"no schema can be made of the signature of {name}: {type(error).__name__}: {error}"
        remedy = "take types that pydantic knows: int, float, str, bool, list, dict, Literal"
        raise ToolUnusable(" ".join(reason.split()), remedy) from error
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": _untitled(parameters)},
    }


def _require_types(function: Callable[..., Any], name: str) -> None:
    """Errors: ToolUnusable for a parameter without a type, or one that has no name in a call."""
    types = get_type_hints(function)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            reason = f"the parameter `{parameter}` of {name} cannot be given by name"
            raise ToolUnusable(reason, "give the tool named parameters only")
        if parameter.name not in types:
            reason = f"the parameter `{parameter.name}` of {name} has no type"
            raise ToolUnusable(reason, f"annotate it, for example `{parameter.name}: int`")


def _untitled(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of parameters without the titles that pydantic makes of their names."""
    properties = {
        name: {key: value for key, value in each.items() if key != "title"}
        for name, each in schema.get("properties", {}).items()
    }
    return {
        "type": "object",
        "properties": properties,
        **{k: v for k, v in schema.items() if k != "properties"},
    }


def _faults(error: ValidationError) -> str:
    """Return one line that names each wrong argument."""
    return "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}"
        for each in error.errors(include_url=False, include_context=False)
    )
