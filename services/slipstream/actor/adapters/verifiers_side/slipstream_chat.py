"""A harness of verifiers whose conversation runs in the process of the runner, without uv and a shell.

It is the harness of every agent that names none and whose taskset brings none. A turn without tool calls ends
it. This file runs in the Python of verifiers, which finds it by its name: `harness: {id: slipstream_chat}`.
"""

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from openai import APIStatusError, AsyncOpenAI
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harness import Harness
from verifiers.v1.harnesses.utils.compaction import is_context_overflow
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult

__all__ = ["SlipstreamChatHarness"]

DONE = ProgramResult(exit_code=0, stdout="", stderr="")


class SlipstreamChatConfig(HarnessConfig):
    """The harness has no settings of its own."""

    id: str = "slipstream_chat"


class SlipstreamChatHarness(Harness[SlipstreamChatConfig]):
    """Asks the policy, calls the tools of the task that it names, and asks again."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> ProgramResult:
        """Hold one segment of the conversation. A context that is full ends it, as a limit and no error."""
        system, prompt = self.resolve_prompt(data)
        messages = [] if system is None else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(message) for message in prompt or ()]
        async with AsyncExitStack() as stack:
            tools, dispatch, servers = await self._tools(mcp_urls, stack)
            client = await stack.enter_async_context(
                AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None, max_retries=0)
            )
            request = {"model": ctx.model, "messages": messages, **({"tools": tools} if tools else {})}
            while True:
                try:
                    answer = await client.chat.completions.create(**request)
                except APIStatusError as error:
                    if is_context_overflow(error):
                        return DONE
                    raise
                message = answer.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    return DONE
                for call in message.tool_calls:
                    content = await _called(call, dispatch, servers)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": content})

    async def _tools(self, urls: Mapping[str, str], stack: AsyncExitStack) -> Any:
        if not urls:
            return [], {}, {}
        timeout = self.config.tool_timeout
        servers = {name: {"url": url, "timeout": timeout} for name, url in urls.items()}
        return await connect_mcp({"mcpServers": servers}, stack, set())


async def _called(call: Any, dispatch: Any, servers: Any) -> Any:
    """Return what a tool says. A call that is wrong is answered with the reason."""
    name = call.function.name
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError as error:
        return f"error: the arguments are no JSON: {error}"
    if not isinstance(arguments, dict):
        return "error: the arguments must be a JSON object"
    if name not in dispatch:
        return f"error: there is no tool {name!r}; there are: {', '.join(sorted(dispatch)) or 'none'}"
    return await call_mcp(servers, dispatch, name, arguments)
