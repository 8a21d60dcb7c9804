"""Requests of /chat/completions and /completions, checked."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from slipstream.actor.chat.messages import MOST_LEVELS, is_deep
from slipstream.actor.chat.template import Message, ToolCall
from slipstream.actor.program.refusal import Refusal

MOST_MESSAGES: Final = 4096
MOST_TOOLS: Final = 128
MOST_CHOICES: Final = 128
MOST_STOPS: Final = 4
STOP_CHARACTERS: Final = 1000
SYSTEM: Final = "system"


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        """Return the fields that are set: in OpenAI's API, null is the same as no value."""
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None}


class Part(_Lenient):
    """One part of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(_Lenient):
    """Name and arguments of a call, as the policy wrote them."""

    name: str
    arguments: str = ""


class CallIn(_Lenient):
    """A tool call in an assistant's message."""

    id: str
    function: CalledFunction


class MessageIn(_Lenient):
    """A message of a request."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[CallIn] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def message(self, position: int) -> Message:
        """Return the message for the chat template. Errors: Refusal for content that is no text."""
        return Message(
            role=SYSTEM if self.role == "developer" else self.role,
            content=self._text(position),
            tool_calls=tuple(
                ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
                for call in self.tool_calls or ()
            ),
            tool_call_id=self.tool_call_id,
            name=self.name,
            reasoning=self.reasoning_content,
        )

    def _text(self, position: int) -> str | None:
        if not isinstance(self.content, list):
            return self.content
        for part in self.content:
            if part.type not in {"text", "refusal"}:
                where = f"messages.{position}.content"
                raise Refusal(400, f"{where}: the policy reads text, and no {part.type}", parameter=where)
        return "".join(part.text or part.refusal or "" for part in self.content)


class FunctionIn(_Lenient):
    """A tool that the policy may call: its name and the JSON schema of its arguments."""

    name: str = Field(min_length=1)


class ToolIn(_Lenient):
    """A tool of a request. The template gets the whole object as the client sent it."""

    type: Literal["function"]
    function: FunctionIn


class StreamOptions(_Lenient):
    """Options of a streamed answer."""

    include_usage: bool = False


class _Request(_Lenient):
    model: str = ""
    n: int = Field(1, ge=1, le=MOST_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None

    def check(self) -> None:
        """Errors: Refusal."""
        if len(self.stops) > MOST_STOPS:
            raise Refusal(
                400, f"stop has {len(self.stops)} strings; at most {MOST_STOPS} end a turn", parameter="stop"
            )
        if any(not 0 < len(each) <= STOP_CHARACTERS for each in self.stops):
            reason = f"stop: each string has 1 to {STOP_CHARACTERS} characters"
            raise Refusal(400, reason, parameter="stop")

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings that end the turn."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the number of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(_Request):
    """A request of /chat/completions."""

    messages: list[MessageIn] = Field(min_length=1, max_length=MOST_MESSAGES)
    tools: list[ToolIn] | None = Field(None, max_length=MOST_TOOLS)
    tool_choice: Any = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0)
    functions: Any = None
    modalities: list[str] | None = None

    def check(self) -> None:
        """Errors: Refusal for parameters that cannot be carried out."""
        super().check()
        if self.functions is not None:
            raise Refusal(400, "functions is deprecated; name them in tools", parameter="functions")
        if self.modalities not in (None, ["text"]):
            raise Refusal(400, "modalities other than text are not sampled", parameter="modalities")

    @property
    def most(self) -> int | None:
        """Most tokens of the turn that the request allows."""
        return self.max_completion_tokens or self.max_tokens


TokenId = Annotated[int, Field(ge=0, lt=2**32)]
"""A token id as messages carry it. TextConversations compares it with the vocabulary."""


class TextRequest(_Request):
    """A request of /completions."""

    prompt: str | list[TokenId] | list[str] | list[list[TokenId]]
    max_tokens: int | None = Field(None, ge=1)
    logprobs: int | None = Field(None, ge=0)
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    def check(self) -> None:
        """Errors: Refusal for parameters that cannot be carried out."""
        super().check()
        unsupported = {"echo": self.echo, "suffix": self.suffix, "best_of": (self.best_of or 1) > 1}
        for name, wanted in unsupported.items():
            if wanted:
                raise Refusal(400, f"{name} is not supported; leave it out", parameter=name)

    def text_or_ids(self) -> str | tuple[int, ...]:
        """Return the prompt. Errors: Refusal for several or empty prompts."""
        prompt: Any = self.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) != 1:
                raise Refusal(
                    400, f"prompt has {len(prompt)} prompts; send a request for each", parameter="prompt"
                )
            prompt = prompt[0]
        if not prompt:
            raise Refusal(400, "prompt is empty; a turn needs a token before it", parameter="prompt")
        return prompt if isinstance(prompt, str) else tuple(prompt)


R = TypeVar("R", ChatRequest, TextRequest)


def read_body(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a request. Errors: Refusal."""
    try:
        read = json.loads(body, parse_constant=_no_number)
        if b"\\ud" in body.lower():  # half of a surrogate pair is no character, and cannot be tokenized
            json.dumps(read, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        reason = (
            "is nested too deeply" if isinstance(error, RecursionError) else f"is no JSON in UTF-8: {error}"
        )
        raise Refusal(400, f"the body {reason}") from None
    if not isinstance(read, dict):
        raise Refusal(400, f"the body is a {type(read).__name__}, and a request is an object")
    return read


def parse(kind: type[R], body: Mapping[str, Any]) -> R:
    """Return the request of a body. Errors: Refusal."""
    try:
        request = kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Refusal(400, f"{where}: {first['msg']}", parameter=str(first["loc"][0])) from None
    request.check()
    return request


def tools_of(body: Mapping[str, Any], request: ChatRequest) -> tuple[dict[str, Any], ...]:
    """Return the tools as the client wrote them; none if the request forbids calls. Errors: Refusal."""
    if is_deep(body.get("tools"), MOST_LEVELS):
        reason = f"tools: a schema is nested more than {MOST_LEVELS} levels deep"
        raise Refusal(400, reason, parameter="tools")
    if request.tool_choice == "none" or not request.tools:
        return ()
    return tuple(body["tools"])


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")
