"""A prompt: the question, and the ground truth of its answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One question, as plain text or as messages (never both), with the ground truth of its answer."""

    prompt_id: str
    task: str
    answer: str
    text: str = ""
    messages: tuple[ChatMessage, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    """Name of its source in a mixture; empty in a run with one source."""

    def __post_init__(self) -> None:
        if bool(self.text) == bool(self.messages):
            raise ValueError(f"prompt {self.prompt_id}: needs either text or messages, and not both")
