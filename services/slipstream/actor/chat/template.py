"""The policy's chat template over several turns, in tokens.

A turn that the policy sampled is never tokenised again. The prompt of the next turn is

    prompt of the turn | sampled tokens | continuation

and only the continuation goes through the template: the end of the assistant's turn, the new messages, and
the beginning of the next assistant's turn. It is cut out of the template's rendering of the whole
conversation, behind the last turn. The rendering of the whole must begin with the rendering of the messages
before; otherwise the policy would see another conversation than the one that the template writes, and
SeamBroken says so.

The package `renderers` (PyPI) writes the templates of many models a second time, in Python. It is not used:
what counts for the policy is the template in its own files, and with the seam checked against that template
no second one is needed. It would also bring the clients of two services into the actor's image.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime
from secrets import token_hex
from typing import Any

from slipstream.actor.chat import tool_forms, turn_reader
from slipstream.actor.chat.messages import Message, ToolCall, harmless_values, template_fields
from slipstream.config.problem import Problem
from slipstream.rpc.errors import SlipstreamError
from slipstream.tokens import TemplateFailed, Tokens

__all__ = ["ChatTemplate", "Message", "SeamBroken", "ToolCall"]

Tool = Mapping[str, Any]
"""A tool in the form that chat templates read:

{"type": "function", "function": {"name": .., "description": .., "parameters": ..}}
"""

KEY = "data.environment"
MARK = "TURNofTHEpolicy"
"""Beginning of what stands for what the policy wrote, to find what the template writes behind it."""
THOUGHT_END = "</think>"
NO_THOUGHT = re.compile(r"<think>\s*</think>(?:\n\n)?")
"""Some templates write an empty thought into the last turn only; it is left out of comparisons."""
KEEP = "set data.environment.keep_thoughts to true: the thoughts of earlier turns then stay, as sampled"
OTHER = "take a model whose template only appends, or an environment of one turn"
PROBE_TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look a word up.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "The word."}},
            "required": ["word"],
        },
    },
}


class SeamBroken(SlipstreamError):
    """The template's rendering of a conversation does not extend its rendering of the messages before."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason, self.remedy = reason, remedy


class ChatTemplate:
    """Messages into tokens and back, by the template of the policy's tokenizer.

    Text of messages that spells a special token does not become that token.
    """

    def __init__(
        self, tokens: Tokens, *, form: tool_forms.ToolForm | None = None, keep_thoughts: bool = False
    ) -> None:
        """`form`: how the policy writes calls of tools; None: as its template does. `keep_thoughts`: leave
        thoughts of earlier turns in the conversation even if the template drops them."""
        self._tokens = tokens
        self._keep_thoughts = keep_thoughts
        self.form = form or tool_forms.form_of(tokens.chat_template)
        """How calls are read; None if the template writes them in no form that is known."""
        self._now: datetime | None = None
        self._thinks = THOUGHT_END in tokens.chat_template

    def at(self, now: datetime) -> "ChatTemplate":
        """Return this template for a conversation that began at a time, which it reads as the present.

        A template that prints the date would otherwise change earlier messages at midnight.
        """
        fixed = copy(self)
        fixed._now = now
        return fixed

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Return the tokens of a conversation and of the beginning of the assistant's turn.

        Errors: TemplateFailed.
        """
        return self._tokens.encode_text(self._text(messages, tools, generation=True))

    def continuation(
        self,
        messages_before: Sequence[Message],
        new_messages: Sequence[Message],
        sampled: Sequence[int],
        tools: Sequence[Tool] = (),
    ) -> tuple[int, ...]:
        """Return the tokens between a sampled turn and the next one.

        `messages_before` ends with the message of the sampled turn, `sampled` are its tokens. Errors:
        SeamBroken; ValueError without a new message, or if the last message before is no assistant's.
        """
        if not new_messages or not messages_before or messages_before[-1].role != "assistant":
            raise ValueError("a continuation stands between an assistant's message and at least one new one")
        try:
            closing, rest = self._seam(messages_before, new_messages, tools)
        except TemplateFailed as error:
            raise SeamBroken(f"the chat template refuses the conversation: {error}", OTHER) from error
        ids = self._tokens.encode_text(closing + rest)
        return ids[1:] if sampled and sampled[-1] == ids[0] else ids

    def parse(self, token_ids: Sequence[int], *, calls_before: int = 0, tools: bool = True) -> Message:
        """Return the message that a sampled turn is.

        `calls_before`: number of calls in the conversation. `tools`: whether the policy may call tools;
        without tools the text of a call is content.
        """
        text = self._tokens.decode_with_special(self._without_end(token_ids))
        return self.read(text, calls_before=calls_before, tools=tools)

    def read(self, text: str, *, calls_before: int = 0, tools: bool = True) -> Message:
        """Return the message that the text of a sampled turn is, special tokens included. See `parse`."""
        reasoning = None
        if self._thinks:
            reasoning, text = _split_thoughts(text)
        content, calls = tool_forms.read_calls(text, self.form if tools else None, first=calls_before)
        return Message(role="assistant", content=content, tool_calls=calls, reasoning=reasoning)

    def settled(self, text: str, *, tools: bool = True) -> Message:
        """Return what the beginning of a turn's text says of its message that no continuation changes.

        The thoughts come whole, and calls not at all. With a template that marks thoughts, nothing is
        settled before they have ended. `tools`: see `parse`.
        """
        reasoning = None
        if self._thinks:
            if THOUGHT_END not in text:
                return Message(role="assistant", content="")
            reasoning, text = _split_thoughts(text)
        content = tool_forms.settled_content(text, self.form if tools else None)
        return Message(role="assistant", content=content, reasoning=reasoning)

    def reader(
        self, stop: Sequence[str] = (), on_piece: Callable[[turn_reader.Piece], None] | None = None
    ) -> turn_reader.TurnReader:
        """Return a reader of the text that `read` takes. `stop`: strings that end the turn."""
        return turn_reader.TurnReader(
            self._tokens.decode_with_special, ends=self._tokens.ends, stop=stop, on_piece=on_piece
        )

    def check(self, *, tools: bool, users: bool = True) -> Iterator[Problem]:
        """Yield why conversations cannot be held by this template.

        `tools`: whether tools are called. `users`: whether messages of the user follow later turns.
        """
        if not self._tokens.chat_template:
            reason = "needs a tokenizer with a chat template, and that of the model has none"
            yield Problem(key=KEY, reason=reason, remedy="take a chat model")
            return
        if tools and (problem := self._without_tools()):
            yield problem
            return
        fixed = self.at(datetime.now())
        for new in self._probes(tools=tools, users=users):
            try:
                fixed.continuation(*new, sampled=(), tools=(PROBE_TOOL,) if tools else ())
            except SeamBroken as error:
                yield Problem(key=KEY, reason=error.reason, remedy=error.remedy)
                return

    def _without_tools(self) -> Problem | None:
        question = Message(role="user", content="?")
        try:
            text = self._text([question], (PROBE_TOOL,), generation=True)
        except TemplateFailed as error:
            return Problem(key=KEY, reason=f"the chat template refuses tools: {error}", remedy=OTHER)
        if PROBE_TOOL["function"]["name"] not in text:
            reason = "the chat template of the model leaves tools out"
            return Problem(key=KEY, reason=reason, remedy="take a model that is trained to call tools")
        if self.form is None:
            reason = "the chat template writes calls of tools in a form that is not known"
            remedy = "set data.environment.tool_form to hermes, llama or mistral, whichever the policy writes"
            return Problem(key=KEY, reason=reason, remedy=remedy)
        return None

    def _probes(self, *, tools: bool, users: bool) -> Iterator[tuple[list[Message], list[Message]]]:
        """Yield conversations, each as the messages before and the new ones."""
        thoughts = "Let us see." if self._thinks else None
        question = Message(role="user", content="How are you?")
        if users:
            reply = Message(role="assistant", content="Well.", reasoning=thoughts)
            yield [question, reply], [question]
        if tools:
            call = ToolCall(id="call00000", name="lookup", arguments='{"word": "well"}')
            called = Message(role="assistant", tool_calls=(call,), reasoning=thoughts)
            answer = Message(role="tool", content="healthy", tool_call_id=call.id, name=call.name)
            yield [question, called], [answer]

    def _seam(
        self, before: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool]
    ) -> tuple[str, str]:
        """Return the end of the assistant's turn, and what the template writes behind it."""
        mark = _mark_beside(new)
        closing = self._behind(mark, [*before[:-1], Message(role="assistant", content=mark)], tools)
        if self._tokens.first_special(closing) is None:
            raise SeamBroken(
                "the chat template does not end an assistant's turn with a special token",
                "take a chat model whose turns end with a token of their own",
            )
        marked = [*before[:-1], _marked(before[-1], mark)]
        end = self._behind(mark, marked, tools)
        behind = self._behind(mark, [*marked, *new], tools, generation=True)
        if not end.endswith(closing) or not behind.startswith(end):
            raise SeamBroken("the chat template ends earlier turns of the assistant in another way", OTHER)
        rest = behind.removeprefix(end)
        self._compare(before, new, tools, rest)
        return closing, rest

    def _compare(
        self, before: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool], rest: str
    ) -> None:
        """Compare the whole with the messages before and the rest. Errors: SeamBroken."""
        if self._keep_thoughts:
            before = [replace(message, reasoning=None) for message in before]
        conversation = self._text([*before, *new], tools, generation=True)
        thoughts = self._tokens.harmless(before[-1].reasoning or "").strip()
        if thoughts and thoughts not in conversation:
            raise SeamBroken("the chat template drops the thoughts of earlier turns", KEEP)
        extended = self._text(before, tools, generation=False) + rest
        if NO_THOUGHT.sub("", conversation) != NO_THOUGHT.sub("", extended):
            raise SeamBroken("the chat template changes earlier messages when new ones follow", OTHER)

    def _behind(
        self, mark: str, messages: Sequence[Message], tools: Sequence[Tool], *, generation: bool = False
    ) -> str:
        """Return the text behind the last mark."""
        _, separator, behind = self._text(messages, tools, generation=generation).rpartition(mark)
        if not separator:
            raise SeamBroken("the chat template leaves out what the assistant says", OTHER)
        return behind

    def _text(self, messages: Sequence[Message], tools: Sequence[Tool], *, generation: bool) -> str:
        harmless = self._tokens.harmless
        fields = [template_fields(message, harmless) for message in messages]
        try:
            offered = [harmless_values(dict(tool), harmless) for tool in tools]
        except RecursionError:
            raise TemplateFailed("the schema of a tool is nested too deeply") from None
        return self._tokens.render(fields, tools=offered, generation=generation, now=self._now)

    def _without_end(self, token_ids: Sequence[int]) -> Sequence[int]:
        return token_ids[:-1] if token_ids and token_ids[-1] in self._tokens.ends else token_ids


def _mark_beside(messages: Sequence[Message]) -> str:
    """Return a mark that no text of the messages has in it: whoever writes them cannot know it before."""
    texts, mark = repr(messages), f"{MARK}{token_hex(8)}"
    return mark if mark not in texts else _mark_beside(messages)


def _marked(message: Message, mark: str) -> Message:
    """Return a message of the assistant with the mark as the last text in it."""
    if not message.tool_calls:
        return replace(message, content=mark)
    *calls, last = message.tool_calls
    return replace(message, tool_calls=(*calls, replace(last, arguments=f'{{"mark": "{mark}"}}')))


def _split_thoughts(text: str) -> tuple[str | None, str]:
    """Return the thoughts of a turn and the rest; the template may have opened the thoughts."""
    thoughts, closed, rest = text.partition(THOUGHT_END)
    opened = thoughts.lstrip().startswith("<think>")
    if not closed and not opened:
        return None, text
    return thoughts.replace("<think>", "", 1).strip() or None, rest.lstrip("\n")
