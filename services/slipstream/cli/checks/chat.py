"""Renders a tokenizer's chat template in jinja2's sandbox: the text of a conversation, and the end of a
turn."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.records import ChatMessage

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer

TURN = "ANSWER"
"""Placeholder for an answer, after which the template writes the end of the turn."""
SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate:
    """FairPool messages into the text that the engine tokenizes."""

    def __init__(self, template: "Template", special_tokens: Mapping[str, str]) -> None:
        self._template = template
        self._special_tokens = special_tokens

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """Return the conversation as text, up to the model's answer; without the template if it fails."""
        from jinja2 import TemplateError

        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return self._template.render(messages=turns, add_generation_prompt=True, **self._special_tokens)
        except (TemplateError, TypeError):
            return "".join(message.content for message in messages)

    def after_answer(self) -> str:
        """Return the text after an assistant's answer; empty if the template fails or drops the answer."""
        from jinja2 import TemplateError

        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": TURN}]
        try:
            text = self._template.render(messages=turns, add_generation_prompt=False, **self._special_tokens)
        except (TemplateError, TypeError):
            return ""
        return text.rpartition(TURN)[2] if TURN in text else ""


def has_chat_template(directory: Path) -> bool:
    """Return whether the tokenizer has a chat template, also one of a form that `read_chat_template` cannot
    read."""
    return bool(_source(directory) or _settings(directory).get("chat_template"))


def read_chat_template(directory: Path) -> ChatTemplate | None:
    """Return the template of a tokenizer directory; None if it has none, or jinja2 is not installed."""
    text, settings = _source(directory), _settings(directory)
    if text is None:
        return None
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    try:
        template = environment.from_string(text)
    except TemplateError:
        return None
    return ChatTemplate(template, {name: _token(settings.get(name)) for name in SPECIAL_TOKENS})


def unstopped_end(directory: Path, tokenizer: "Tokenizer", template: ChatTemplate) -> str:
    """Return the token that ends a turn if generation would not stop at it; empty otherwise.

    vLLM stops at the tokenizer's eos_token, and at eos_token_id of generation_config.json, or of config.json
    if that file does not exist.
    """
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    ids = tokenizer.encode(template.after_answer(), add_special_tokens=False).ids
    end = next((number for number in ids if number in special), None)
    if end is None:
        return ""
    generation = _read(directory / "generation_config.json") or _read(directory / "config.json")
    eos = generation.get("eos_token_id")
    stops = set(eos) if isinstance(eos, list) else {eos}
    stops.add(tokenizer.token_to_id(_token(_settings(directory).get("eos_token"))))
    return "" if end in stops else str(tokenizer.id_to_token(end))


def _source(directory: Path) -> str | None:
    file = directory / "chat_template.jinja"
    text = file.read_text(encoding="utf-8") if file.is_file() else _settings(directory).get("chat_template")
    return text if isinstance(text, str) else None


def _settings(directory: Path) -> dict[str, Any]:
    return _read(directory / "tokenizer_config.json")


def _read(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _token(value: object) -> str:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
