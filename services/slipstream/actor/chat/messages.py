"""Messages of a conversation, in the roles and fields of chat templates."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

MOST_LEVELS = 100
"""Most levels of nesting of a JSON text: templates and tools read values by recursive functions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool that the policy wrote."""

    id: str
    name: str
    arguments: str
    """JSON text of an object, which UTF-8 can encode; the text that the policy wrote if `error` is set."""
    error: str = ""
    """Why the call cannot be read; empty if it can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: str
    """`system`, `user`, `assistant` or `tool`."""
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """Of a message of a tool: the call that it answers."""
    name: str | None = None
    reasoning: str | None = None
    """Thoughts before the content, where the template marks them by <think> and </think>."""


def template_fields(message: Message, harmless: Callable[[str], str]) -> dict[str, Any]:
    """Return a message as chat templates take it. `harmless` takes special tokens out of a text."""
    fields: dict[str, Any] = {"role": message.role, "content": harmless(message.content or "")}
    if message.reasoning:
        fields["reasoning_content"] = harmless(message.reasoning)
    if message.tool_calls:
        fields["tool_calls"] = [_call_fields(call, harmless) for call in message.tool_calls]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = harmless(message.tool_call_id)
    if message.name is not None:
        fields["name"] = harmless(message.name)
    return fields


def harmless_values(value: Any, harmless: Callable[[str], str]) -> Any:
    """Return a JSON value with `harmless` applied to all texts in it, the keys included."""
    if isinstance(value, str):
        return harmless(value)
    if isinstance(value, dict):
        return {harmless(key): harmless_values(each, harmless) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [harmless_values(each, harmless) for each in value]
    return value


def continues(messages: Sequence[Message], earlier: Sequence[Message]) -> bool:
    """Return whether `messages` are the messages `earlier` and at least one more.

    Two messages are the same if they differ at most in white space at the ends of the content, in the
    formatting of arguments, in ids of tool calls, and in the reasoning, which clients often leave out.
    """
    if len(messages) <= len(earlier):
        return False
    pairs = zip(messages[: len(earlier)], earlier, strict=True)
    return all(_canonical(sent) == _canonical(recorded) for sent, recorded in pairs)


def _canonical(message: Message) -> Message:
    calls = tuple(
        replace(call, id="", arguments=_canonical_json(call.arguments), error="")
        for call in message.tool_calls
    )
    content = (message.content or "").strip()
    return replace(message, content=content, tool_calls=calls, tool_call_id=None, reasoning=None)


def _canonical_json(text: str) -> str:
    value = json_value(text)
    return text if value is None else json.dumps(value, sort_keys=True)


def json_value(text: str) -> Any:
    """Return the value of a JSON text; None if it is none, or is nested more than MOST_LEVELS deep."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return None if is_deep(value, MOST_LEVELS) else value


def is_deep_json(text: str) -> bool:
    """Return whether a text is JSON that is nested more than MOST_LEVELS deep."""
    try:
        return is_deep(json.loads(text), MOST_LEVELS)
    except RecursionError:
        return True
    except ValueError:
        return False


def is_deep(value: Any, levels: int) -> bool:
    """Return whether a JSON value is nested more than `levels` deep."""
    if not isinstance(value, dict | list):
        return False
    each = value.values() if isinstance(value, dict) else value
    return not levels or any(is_deep(inner, levels - 1) for inner in each)


def _call_fields(call: ToolCall, harmless: Callable[[str], str]) -> dict[str, Any]:
    value = json_value(call.arguments)
    arguments = harmless_values(value if isinstance(value, dict) else call.arguments, harmless)
    return {
        "id": harmless(call.id),
        "type": "function",
        "function": {"name": harmless(call.name), "arguments": arguments},
    }
