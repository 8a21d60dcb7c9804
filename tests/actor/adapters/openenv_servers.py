"""A scripted server that speaks the messages of OpenEnv, and a policy that says given texts."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rollout.fakes import turn
from slipstream.actor.adapters.openenv import OpenEnv, open_openenv
from slipstream.actor.environment import EpisodeBounds
from slipstream.actor.episode_run import Played, run_episode
from slipstream.config.openenv import OpenEnvEnvironment
from slipstream.learner.policy.tiny import make_tokenizer
from slipstream.records import Prompt, Turn
from slipstream.telemetry.logs import Log
from slipstream.tokens import Tokens
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

TOKENS = Tokens(make_tokenizer(max_tokens=512), context_tokens=512, max_new_tokens=200)
SCHEMA = {
    "action": {"properties": {"guess": {}, "metadata": {}}, "additionalProperties": False},
    "observation": {"properties": {"hint": {}, "left": {}, "done": {}}, "additionalProperties": False},
}
Answers = Callable[[str, dict[str, Any]], dict[str, Any] | None]
"""Maps the type and the data of a message to the answer; None closes the connection."""


def said(reward: float | None = None, *, done: bool = False, **observation: Any) -> dict[str, Any]:
    """Return an observation in the form of OpenEnv."""
    return {"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}}


def failed(code: str, message: str) -> dict[str, Any]:
    """Return an error in the form of OpenEnv."""
    return {"type": "error", "data": {"code": code, "message": message}}


def higher_or_lower(secret: int) -> Callable[[], Answers]:
    """Return a game: the policy guesses a number; the reward is 1 for the right guess, else -0.5."""

    def session() -> Answers:
        def answer(kind: str, data: dict[str, Any]) -> dict[str, Any]:
            if kind == "reset":
                return said(hint="guess", left=data.get("tries", 3))
            if not data["guess"].isdecimal():
                return failed("VALIDATION_ERROR", "guess must be a number")
            guess = int(data["guess"])
            if guess == secret:
                return said(1.0, done=True, hint="right")
            return said(-0.5, hint="up" if guess < secret else "down", left=1)

        return answer

    return session


@dataclass
class ScriptedServer:
    """Each connection is a session; more than `capacity` of them at once are refused, as OpenEnv does."""

    session: Callable[[], Answers]
    capacity: int = 100
    schema: dict[str, Any] = field(default_factory=lambda: SCHEMA)
    received: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    open: int = 0
    most_open: int = 0
    step_seconds: float = 0.0
    url: str = ""

    async def handle(self, connection: ServerConnection) -> None:
        if self.open >= self.capacity:
            await connection.send(json.dumps(failed("CAPACITY_REACHED", "no session is free")))
            return
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await self._converse(connection, self.session())
        finally:
            self.open -= 1

    async def _converse(self, connection: ServerConnection, answers: Answers) -> None:
        async for raw in connection:
            message = json.loads(raw)
            self.received.append((message["type"], message.get("data", {})))
            if message["type"] == "close":
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(connection.wait_closed(), self.step_seconds)
            answer = answers(message["type"], message["data"])
            if answer is None:
                return
            await connection.send(json.dumps(answer))

    def http(self, connection: ServerConnection, request: Request) -> Response | None:
        return None if request.path == "/ws" else connection.respond(200, json.dumps(self.schema))


@asynccontextmanager
async def serving(server: ScriptedServer) -> AsyncIterator[ScriptedServer]:
    """Serve on a free port of loopback."""
    async with serve(server.handle, "127.0.0.1", 0, process_request=server.http) as listening:
        port = next(iter(listening.sockets)).getsockname()[1]
        server.url = f"http://127.0.0.1:{port}"
        yield server


def says(*texts: str) -> Callable[[tuple[int, ...], int], Any]:
    """Return a policy that samples these texts in order; `asked` collects the text before each."""
    left = list(texts)

    async def sample(token_ids: tuple[int, ...], max_tokens: int) -> Turn:
        tokens = TOKENS.encode_text(left.pop(0))[:max_tokens]
        return turn(tokens, (1, len(tokens)))

    return sample


def row(**fields: str) -> Prompt:
    """Return a prompt with further columns."""
    return Prompt(prompt_id="p", task="t", text="play ", answer="", fields=fields)


async def played(
    environment: OpenEnv, sample: Any, *, prompt: Prompt | None = None, bounds: EpisodeBounds | None = None
) -> Played:
    """Return the episode of a policy."""
    prompt = prompt or row()
    return await run_episode(
        environment,
        prompt,
        TOKENS.encode_text(prompt.text),
        sample=sample,
        tokens=TOKENS,
        bounds=bounds or EpisodeBounds(max_tokens=100, context_tokens=200, max_turns=8, seconds=10),
    )


@asynccontextmanager
async def environment_of(server: ScriptedServer, **settings: Any) -> AsyncIterator[OpenEnv]:
    """Open the environment of a scripted server."""
    config = OpenEnvEnvironment.model_validate({"url": server.url, "start_seconds": 0.3, **settings})
    async with open_openenv(config, tokens=TOKENS, log=Log(pod="test")) as environment:
        yield environment


def decoded(token_ids: Sequence[int] | Iterable[int]) -> str:
    """Return the text of tokens."""
    return TOKENS.decode(list(token_ids))
