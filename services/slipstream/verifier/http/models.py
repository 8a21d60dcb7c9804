"""The HTTP messages, documented by OpenAPI. They correspond to proto/slipstream/v1/verifier.proto."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from slipstream.records import ChatMessage, FinishReason, Prompt
from slipstream.records import Reward as Component
from slipstream.verifier.reward import Answer


class Strict(BaseModel):
    """No unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class MessageIn(Strict):
    """One turn of a conversation."""

    role: str
    """The speaker: system, user or assistant."""
    content: str
    """What is said."""


class PromptIn(Strict):
    """One question, as `text` or as `messages` (never both), and what judges an answer to it."""

    prompt_id: str = Field("http", min_length=1, description="Names the prompt in messages and logs.")
    task: str = Field("", description="Name of its task.")
    text: str = Field("", description="The prompt as plain text.")
    messages: tuple[MessageIn, ...] = Field((), description="The prompt as a conversation.")
    answer: str = Field("", description="The ground truth.")
    fields: dict[str, str] = Field({}, description="Further fields that a reward reads.")
    source: str = Field("", description="Name of its source, if the run mixes several.")

    def to_prompt(self) -> Prompt:
        """The prompt. Errors: ValueError for both or neither of text and messages."""
        turns = tuple(ChatMessage(role=turn.role, content=turn.content) for turn in self.messages)
        return Prompt(
            prompt_id=self.prompt_id,
            task=self.task,
            text=self.text,
            messages=turns,
            answer=self.answer,
            fields=self.fields,
            source=self.source,
        )


class AnswerIn(Strict):
    """One completion of the group."""

    text: str = Field(description="The completion as text.")
    tokens: int = Field(0, ge=0, description="Its length in tokens; rewards of length read it.")
    finish_reason: Literal["stop", "length"] = Field("stop", description="Why it ended.")

    def to_answer(self) -> Answer:
        """The answer."""
        return Answer(text=self.text, tokens=self.tokens, finish_reason=FinishReason(self.finish_reason))


class ScoreIn(Strict):
    """A group: all completions of one prompt, judged together."""

    prompt: PromptIn
    """The prompt of all answers."""
    answers: tuple[AnswerIn, ...] = Field(min_length=1, description="At least one.")


class ComponentOut(Strict):
    """What one reward says of one answer."""

    name: str = Field(description="Name of the reward, as configured.")
    outcome: Literal["score", "invalid_answer", "error"] = Field(
        description="`error`: the infrastructure failed, and there is no score; try again."
    )
    value: float | None = Field(description="The score; null when the outcome is `error`.")
    detail: str = Field(description="Why, in words.")


class ScoreOut(Strict):
    """One vector an answer, in the order of the answers; its components in the configured order."""

    vectors: list[list[ComponentOut]]
    """What the rewards say, answer by answer."""


class Refusal(Strict):
    """Why there are no scores."""

    error: str = Field(description="What is wrong, where, and what to do.")


def component_out(component: Component) -> ComponentOut:
    """A component as it crosses the wire."""
    has_value = component.outcome.value != "error"
    return ComponentOut(
        name=component.name,
        outcome=component.outcome.value,
        value=component.value if has_value else None,
        detail=component.detail,
    )
