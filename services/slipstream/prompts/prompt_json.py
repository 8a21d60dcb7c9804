"""Prompts as JSON, for messages to child processes."""

from typing import Any

from slipstream.records import ChatMessage, Prompt


def prompt_to_json(prompt: Prompt) -> dict[str, Any]:
    """Return a prompt as JSON values."""
    return {
        "prompt_id": prompt.prompt_id,
        "task": prompt.task,
        "answer": prompt.answer,
        "text": prompt.text,
        "messages": [[message.role, message.content] for message in prompt.messages],
        "fields": dict(prompt.fields),
        "source": prompt.source,
    }


def prompt_from_json(value: dict[str, Any]) -> Prompt:
    """Return the prompt of JSON values."""
    messages = tuple(ChatMessage(role=role, content=content) for role, content in value["messages"])
    return Prompt(**{**value, "messages": messages})
