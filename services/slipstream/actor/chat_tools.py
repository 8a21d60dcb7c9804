"""The environment `chat_tools`: the policy calls tools by its chat template, until it answers without a call.

    prompt -> turn with calls -> results of the tools -> turn with calls -> ... -> answer

A failed call is answered by a text that says why. It does not end the episode, and changes no reward but
`failed_tool_calls`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import get_args

from slipstream.actor import environment, own_code, own_environment
from slipstream.actor.chat.conversation import Conversations
from slipstream.actor.chat.messages import Message, ToolCall, json_value
from slipstream.actor.chat.template import ChatTemplate, Tool
from slipstream.actor.chat.tools import EpisodeTool, Outcome, Toolbox
from slipstream.actor.tools import make_tools
from slipstream.config import ConfigError, environments
from slipstream.records import Prompt, without_surrogates
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import TemplateFailed, Tokens

OF_TOOLS: tuple[Outcome, ...] = get_args(Outcome)
"""Outcomes of a call that has a tool, as in the metric tool_calls_total."""
WITHOUT_TOOL = ("unreadable", "unknown")
NOT_FAILED = ("ok", "unavailable")
"""Outcomes that are no failure of the policy."""


class ChatTools:
    """Lets the policy call tools, and takes the content of its last turn as the answer."""

    def __init__(
        self,
        toolboxes: Sequence[Toolbox],
        template: ChatTemplate,
        *,
        output_characters: int,
        metrics: Metrics,
    ) -> None:
        self._toolboxes = toolboxes
        self._schemas = [schema for toolbox in toolboxes for schema in toolbox.schemas]
        self._template = template
        self._output_characters = output_characters
        self._metrics = metrics
        for schema in self._schemas:
            for outcome in OF_TOOLS:
                metrics.count("tool_calls_total", 0, tool=make_tools.name_of(schema), outcome=outcome)
        for without_tool in WITHOUT_TOOL:
            metrics.count("tool_calls_total", 0, tool="", outcome=without_tool)

    async def run(self, episode: environment.Episode) -> None:
        """Give `tool_calls` and `failed_tool_calls`, the number of calls and of those that failed."""
        async with AsyncExitStack() as stack:
            tools: dict[str, EpisodeTool] = {}
            for toolbox in self._toolboxes:
                tools.update(await stack.enter_async_context(toolbox.opened(episode)))
            await self._talk(episode, tools)

    async def _talk(self, episode: environment.Episode, tools: Mapping[str, EpisodeTool]) -> None:
        talk = Conversations(episode, self._template)
        messages = opening(episode.prompt)
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
        text = without_surrogates(text)
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
            outcome, text = await _answered(tool, call)
            self._metrics.observe("tool_call_seconds", time.monotonic() - started, tool=call.name)
        labelled = "" if outcome in WITHOUT_TOOL else call.name
        self._metrics.count("tool_calls_total", tool=labelled, outcome=outcome)
        return outcome, text


async def _answered(tool: EpisodeTool, call: ToolCall) -> tuple[Outcome, str]:
    try:
        return await own_code.uninterrupted(tool.answer(json_value(call.arguments)))
    except own_code.Interrupted as error:
        return "failed", f"Error: {own_code.described(error)}"


def opening(prompt: Prompt) -> list[Message]:
    """Return the messages of a prompt; a prompt of text is a message of the user."""
    if not prompt.messages:
        return [Message(role="user", content=prompt.text)]
    return [Message(role=message.role, content=message.content) for message in prompt.messages]


@asynccontextmanager
async def open_chat_tools(
    config: environments.ChatToolsEnvironment, tokens: Tokens, resources: make_tools.ToolResources
) -> AsyncIterator[ChatTools]:
    """Make the environment of an actor, with its tool servers, which end with the context.

    Errors: ConfigError with the key at fault.
    """
    try:
        async with make_tools.open_servers(config, resources.log) as servers:
            yield make_chat_tools(config, tokens, resources, servers)
    except own_environment.EnvironmentUnusable as error:
        raise ConfigError(str(error), [error.problem]) from error


def make_chat_tools(
    config: environments.ChatToolsEnvironment,
    tokens: Tokens,
    resources: make_tools.ToolResources,
    servers: make_tools.Servers | None = None,
) -> ChatTools:
    """Make the environment with its running tool servers. Errors: EnvironmentUnusable."""
    template = ChatTemplate(tokens, form=config.tool_form, keep_thoughts=config.keep_thoughts)
    for problem in template.check(tools=True, users=False):
        raise own_environment.EnvironmentUnusable(problem)
    toolboxes = make_tools.make_tools(config, resources, servers or {})
    _check_prompt(template, [schema for each in toolboxes for schema in each.schemas], tokens.context_tokens)
    return ChatTools(
        toolboxes, template, output_characters=config.output_characters, metrics=resources.metrics
    )


def _check_prompt(template: ChatTemplate, schemas: Sequence[Tool], context_tokens: int | None) -> None:
    """Render a question with the tools. Errors: EnvironmentUnusable."""
    try:
        size = len(template.render([Message(role="user", content="?")], schemas))
    except TemplateFailed as error:
        raise make_tools.unusable(
            f"{own_environment.KEY}.tools", f"the chat template refuses them: {error}", "leave some out"
        ) from error
    if context_tokens is not None and size >= context_tokens:
        reason = f"take {size} tokens of each prompt, and the context has {context_tokens}"
        raise make_tools.unusable(
            f"{own_environment.KEY}.tools", reason, "leave some out, or raise rollout.context_tokens"
        )
