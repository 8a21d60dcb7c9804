"""A real endpoint whose engine is a function of its context, and a tokenizer with a chat template."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollout.fakes import prompt
from slipstream.actor.chat.template import ChatTemplate
from slipstream.actor.environment import Episode, EpisodeBounds
from slipstream.actor.program.endpoint import Endpoint, serve
from slipstream.actor.program.environment import Programs
from slipstream.actor.program.open import open_programs
from slipstream.actor.program.sessions import Session, Sessions
from slipstream.actor.sampler import Watch
from slipstream.config.environments import ProgramEnvironment
from slipstream.learner.policy.tiny import make_tokenizer
from slipstream.records import FinishReason, Prompt, Turn, VersionSpan, chunk_since, chunk_until
from slipstream.telemetry.logs import Log
from slipstream.telemetry.metrics import Metrics
from slipstream.tokens import Tokens

EOS = 1
TEMPLATE = """{%- if tools %}tools:{{ tools | tojson }}{{ eos_token }}{% endif %}
{%- for message in messages %}{{ message.role }}:{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{"name": "{{ call.function.name }}", "arguments":
{{- call.function.arguments | tojson }}}</tool_call>{% endfor %}{{ eos_token }}{% endfor %}
{%- if add_generation_prompt %}assistant:{% endif %}"""
"""A template in the form of Hermes, with only characters of the tiny tokenizer."""
CONTEXT = 4000
MOST_TOKENS = 2000


def make_tokens(*, template: str | None = TEMPLATE) -> Tokens:
    """Return the tiny tokenizer: a token for each character."""
    tokenizer = make_tokenizer(max_tokens=CONTEXT)
    tokenizer.chat_template = template
    return Tokens(tokenizer, context_tokens=CONTEXT, max_new_tokens=MOST_TOKENS)


TOKENS = make_tokens()
Say = Callable[[str], str]
"""Maps the text of a context to the answer of the policy."""


@dataclass
class Policy:
    """Samples what `say` returns, with the end of a turn behind it; records the contexts."""

    say: Say = lambda context: "well"
    contexts: list[tuple[int, ...]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    gate: Any = None
    error: Exception | None = None
    cancelled: int = 0
    chunk_tokens: int = 3
    """Tokens that arrive at a time where somebody reads the turn while it is sampled."""
    next_chunk: Any = None
    """An asyncio.Semaphore that lets a chunk pass; None: they come one after another."""

    async def sample(self, token_ids: tuple[int, ...], max_tokens: int, watch: Watch | None = None) -> Turn:
        self.contexts.append(token_ids)
        try:
            if self.gate is not None:
                await self.gate.wait()
        except BaseException:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        sampled = (*TOKENS.encode_text(self.say(TOKENS.decode_with_special(token_ids))), EOS)
        turn = turn_of(sampled[:max_tokens])
        try:
            self.turns.append(turn if watch is None else await self._read(turn, watch))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.turns[-1]

    async def _read(self, turn: Turn, watch: Watch) -> Turn:
        """Let a turn be read in chunks; return it, or its beginning if its reader ends it."""
        for start in range(0, len(turn.token_ids), self.chunk_tokens):
            if self.next_chunk is not None:
                await self.next_chunk.acquire()
            await asyncio.sleep(0)
            end = start + self.chunk_tokens
            last = end >= len(turn.token_ids)
            kept = watch(turn.since(start) if last else chunk_until(chunk_since(turn, start), end - start))
            if kept is not None:
                return turn.until(start + kept)
        return turn


def turn_of(token_ids: tuple[int, ...]) -> Turn:
    """Return a turn of these tokens."""
    return Turn(
        token_ids=token_ids,
        logprobs=tuple(-token / 128 for token in token_ids),
        spans=(VersionSpan(version=3, start=0, end=len(token_ids)),) if token_ids else (),
        finish_reason=FinishReason.STOP if token_ids[-1:] == (EOS,) else FinishReason.LENGTH,
    )


def bounds(**changed: Any) -> EpisodeBounds:
    """Return bounds that no test reaches unintentionally."""
    usual = {"max_tokens": MOST_TOKENS, "context_tokens": CONTEXT, "max_segments": 50, "max_turns": 500}
    return EpisodeBounds(**{**usual, **changed})


def episode_of(policy: Any, **changed: Any) -> Episode:
    """Return an episode that samples from a policy."""
    return Episode(
        prompt(), TOKENS.encode_text("0+0="), sample=policy.sample, tokens=TOKENS, bounds=bounds(**changed)
    )


@dataclass(kw_only=True)
class Served:
    """A running endpoint."""

    url: str
    sessions: Sessions
    metrics: Metrics
    endpoint: Endpoint

    def base(self, session: Session) -> str:
        return f"{self.url}/{session.number}/v1"


@asynccontextmanager
async def endpoint(
    *, refuse: bool = False, tokens: Tokens = TOKENS, most_requests: int = 32, request_kib: int = 64
) -> AsyncIterator[Served]:
    """Yield an endpoint on a real socket."""
    metrics = Metrics()
    template = ChatTemplate(tokens) if tokens.chat_template else None
    sessions = Sessions(tokens=tokens, template=template, most_requests=most_requests)
    made = Endpoint(
        sessions,
        spell=tokens.decode_with_special,
        temperature=1.0,
        refuse=refuse,
        request_kib=request_kib,
        metrics=metrics,
        log=Log(pod="actor-0"),
    )
    async with serve(made, Log(pod="actor-0")) as url:
        yield Served(url=url, sessions=sessions, metrics=metrics, endpoint=made)


@asynccontextmanager
async def programs(
    *command: str, run_folder: Path, metrics: Metrics | None = None, **settings: Any
) -> AsyncIterator[Programs]:
    """Yield the environment `program` with a command."""
    config = ProgramEnvironment.model_validate({"kind": "program", "command": command, **settings})
    async with open_programs(
        config,
        tokens=TOKENS,
        temperature=1.0,
        seed=7,
        run_folder=run_folder,
        metrics=metrics or Metrics(),
        log=Log(pod="actor-0"),
    ) as made:
        yield made


def messages_prompt(*contents: str, fields: dict[str, str] | None = None) -> Prompt:
    """Return a prompt of messages of the user."""
    from slipstream.records import ChatMessage

    messages = tuple(ChatMessage(role="user", content=content) for content in contents)
    return Prompt(prompt_id="m0", task="made up", answer="secret", messages=messages, fields=fields or {})


def text_of(token_ids: Sequence[int]) -> str:
    """Return the text of tokens, special ones included."""
    return TOKENS.decode_with_special(token_ids)
