"""The environment `chat_tools`: the policy calls tools by its chat template, until it answers without a call.

    prompt -> turn with calls -> results of the tools -> turn with calls -> ... -> answer

A call that fails is answered by a text that says why. It never ends the episode, and is no reward.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from slipstream.actor.chat.conversation import Conversations
from slipstream.actor.chat.messages import Message, ToolCall, json_value
from slipstream.actor.chat.template import ChatTemplate
from slipstream.actor.chat.tools import AnyTool, EpisodeTool, Outcome, OwnTool, ToolUnusable
from slipstream.actor.environment import Episode
from slipstream.actor.own_environment import KEY, EnvironmentUnusable
from slipstream.actor.tools.python_tool import ProgramRunner, ProgramTool
from slipstream.config import ConfigError
from slipstream.config.environments import ChatToolsEnvironment, FunctionTool, PythonTool
from slipstream.config.problem import Problem
from slipstream.functions import FunctionMissing, load_function
from slipstream.records import Prompt
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import Tokens

OF_TOOLS: tuple[Outcome, ...] = get_args(Outcome)
"""Outcomes of a call that has a tool, as in the metric tool_calls_total."""
WITHOUT_TOOL = ("unreadable", "unknown")
NOT_FAILED = ("ok", "unavailable")
"""Outcomes that are no failure of the policy."""


class ChatTools:
    """Lets the policy call tools, and takes the content of its last turn as the answer."""

    def __init__(
        self, tools: Sequence[AnyTool], template: ChatTemplate, *, output_characters: int, metrics: Metrics
    ) -> None:
        self._tools = tools
        self._schemas = [tool.schema for tool in tools]
        self._template = template
        self._output_characters = output_characters
        self._metrics = metrics
        for tool in tools:
            for outcome in OF_TOOLS:
                metrics.count("tool_calls_total", 0, tool=tool.name, outcome=outcome)
        for without_tool in WITHOUT_TOOL:
            metrics.count("tool_calls_total", 0, tool="", outcome=without_tool)

    async def run(self, episode: Episode) -> None:
        """Give `tool_calls` and `failed_tool_calls`, the number of calls and of those that failed."""
        talk = Conversations(episode, self._template)
        messages = opening(episode.prompt)
        tools = {tool.name: tool.for_episode(episode.prompt) for tool in self._tools}
        episode.rewards.update(tool_calls=0.0, failed_tool_calls=0.0)
        while True:
            reply = await talk.complete(messages, self._schemas)
            episode.answer = reply.message.content or ""
            calls = reply.message.tool_calls
            if not calls:
                return
            results = await asyncio.gather(*(self._called(call, tools) for call in calls))
            episode.rewards["tool_calls"] += len(calls)
            episode.rewards["failed_tool_calls"] += sum(outcome not in NOT_FAILED for outcome, _ in results)
            messages = [*messages, reply.message, *map(self._answer, calls, [text for _, text in results])]

    def _answer(self, call: ToolCall, text: str) -> Message:
        return Message(role="tool", content=self._cut(text), tool_call_id=call.id, name=call.name or None)

    def _cut(self, text: str) -> str:
        most = self._output_characters
        return text if len(text) <= most else f"{text[:most]}\n[cut: {len(text) - most} more characters]"

    async def _called(self, call: ToolCall, tools: Mapping[str, EpisodeTool]) -> tuple[str, str]:
        """Return the outcome of a call and its text."""
        tool = tools.get(call.name)
        outcome: str
        if call.error:
            outcome, text = "unreadable", f"Error: the call cannot be read: {call.error}"
        elif tool is None:
            outcome, text = "unknown", f"Error: there is no tool {call.name!r}, only {', '.join(tools)}"
        else:
            started = time.monotonic()
            outcome, text = await tool.answer(json_value(call.arguments))
            self._metrics.observe("tool_call_seconds", time.monotonic() - started, tool=call.name)
        labelled = "" if outcome in WITHOUT_TOOL else call.name
        self._metrics.count("tool_calls_total", tool=labelled, outcome=outcome)
        return outcome, text


def opening(prompt: Prompt) -> list[Message]:
    """Return the messages of a prompt; a prompt of text is a message of the user."""
    if not prompt.messages:
        return [Message(role="user", content=prompt.text)]
    return [Message(role=message.role, content=message.content) for message in prompt.messages]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResources:
    """What tools share with the rest of the actor."""

    programs: ProgramRunner
    """Runs the programs of the tool `python`."""
    metrics: Metrics
    log: Log


def open_chat_tools(config: ChatToolsEnvironment, tokens: Tokens, resources: ToolResources) -> ChatTools:
    """Make the environment of an actor. Errors: ConfigError with the key at fault."""
    try:
        return make_chat_tools(config, tokens, resources)
    except EnvironmentUnusable as error:
        raise ConfigError(str(error), [error.problem]) from error


def make_chat_tools(config: ChatToolsEnvironment, tokens: Tokens, resources: ToolResources) -> ChatTools:
    """Make the environment. Errors: EnvironmentUnusable."""
    template = ChatTemplate(tokens, form=config.tool_form, keep_thoughts=config.keep_thoughts)
    for problem in template.check(tools=True, users=False):
        raise EnvironmentUnusable(problem)
    tools = make_tools(config, resources)
    return ChatTools(tools, template, output_characters=config.output_characters, metrics=resources.metrics)


def make_tools(config: ChatToolsEnvironment, resources: ToolResources) -> list[AnyTool]:
    """Make the tools. Errors: EnvironmentUnusable."""
    tools: dict[str, AnyTool] = {}
    for position, each in enumerate(config.tools):
        key = f"{KEY}.tools.{position}.{'function' if isinstance(each, FunctionTool) else 'name'}"
        tool = _make_tool(each, key, resources)
        if tool.name in tools:
            reason = f"is the second tool with the name {tool.name}"
            raise _unusable(key, reason, "name one of the two otherwise")
        tools[tool.name] = tool
    return list(tools.values())


def _make_tool(config: FunctionTool | PythonTool, key: str, resources: ToolResources) -> AnyTool:
    if isinstance(config, PythonTool):
        return ProgramTool(config, resources.programs, log=resources.log)
    try:
        return OwnTool(load_function(config.function), seconds=config.seconds)
    except FunctionMissing as error:
        remedy = error.remedy or "name a function as package.module:name"
        raise _unusable(key, error.reason, remedy) from error
    except ToolUnusable as error:
        raise _unusable(key, error.reason, error.remedy) from error
    except Exception as error:  # a user's module may raise anything
        reason = f"{config.function} cannot be imported: {type(error).__name__}: {error}"
        raise _unusable(key, reason, "correct the module") from error


def _unusable(key: str, reason: str, remedy: str) -> EnvironmentUnusable:
    return EnvironmentUnusable(Problem(key=key, reason=" ".join(reason.split()), remedy=remedy))
