"""Prompts as JSON, for child processes."""

from typing import Any

from slipstream.records import ChatMessage, Prompt


def prompt_to_json(prompt: Prompt) -> dict[str, Any]:
    """Prompt → JSON."""
    return {
        "prompt_id": prompt.prompt_id,
        "task": prompt.task,
        "answer": prompt.answer,
        "text": prompt.text,
        "messages": [[message.role, message.content] for message in prompt.messages],
        "fields": dict(prompt.fields),
    }


def prompt_from_json(value: dict[str, Any]) -> Prompt:
    """JSON → Prompt."""
    messages = tuple(ChatMessage(role=role, content=content) for role, content in value["messages"])
    return Prompt(**{**value, "messages": messages})
