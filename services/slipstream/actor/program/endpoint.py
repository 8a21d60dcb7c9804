"""The OpenAI-compatible endpoint of an actor: /v1/chat/completions, /v1/completions and /v1/models.

    request ── session by URL and key ── body, bounded ── parameters ── turn of the episode ── answer
                     401                     413, 408        400              400, 503

Each wait has a bound: the body `BODY_SECONDS`, a turn the deadline of its group. A client that goes away ends
its request, and with it the sampling.
"""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from typing import Any, Final

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from slipstream.actor.internal_errors import InternalErrors
from slipstream.actor.program import answers, parameters, requests, responses, streams
from slipstream.actor.program.exchange import Exchange
from slipstream.actor.program.refusal import Refusal
from slipstream.actor.program.sessions import Session, Sessions
from slipstream.telemetry import background, logs
from slipstream.telemetry.listening import listen
from slipstream.telemetry.metrics import Metrics

KIB = 1024
BACKLOG = 1024
BODY_SECONDS = 30.0
"""Deadline for the body of a request."""
DISCARDED_BYTES = 64 * KIB * KIB
"""Bytes of a body over the limit that are read and thrown away, so that the client reads the answer."""
IDLE_SECONDS = 60
MODEL = "policy"
ENDPOINTS = ("chat", "completions", "models", "other")
"""Values of the metric label."""
MOST_CONNECTIONS: Final = 2048
OPEN_FILES: Final = 16_384
"""Open files that an actor may want: those of connections, of programs, and of streams to rollouts."""


class Endpoint:
    """Answers the requests of the sessions of an actor."""

    def __init__(
        self,
        sessions: Sessions,
        *,
        spell: responses.Spell,
        temperature: float,
        refuse: bool,
        request_kib: int,
        metrics: Metrics,
        log: logs.Log,
    ) -> None:
        """`refuse`: whether a parameter that would change the distribution is an error."""
        self._sessions = sessions
        self._spell = spell
        self._temperature = temperature
        self._refuse = refuse
        self._most_bytes = request_kib * KIB
        self._metrics = metrics
        self._internal_errors = InternalErrors(metrics=metrics, log=log)
        for name in ENDPOINTS:  # Prometheus sees no rise in a counter that appears with its first event
            metrics.count("program_requests_total", 0, endpoint=name, status="200")

    def app(self) -> FastAPI:
        """Return the application."""
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
        routes: tuple[tuple[str, str, str, Callable[[Request, Session], Awaitable[Response]]], ...] = (
            ("POST", "chat/completions", "chat", self._chat),
            ("POST", "completions", "completions", self._complete),
            ("GET", "models", "models", self._models),
        )
        for method, path, name, handle in routes:
            app.add_api_route(f"/{{number}}/v1/{path}", self._answering(name, handle), methods=[method])
        app.add_exception_handler(HTTPException, self._no_such_route)
        return app

    def _answering(
        self, name: str, handle: Callable[[Request, Session], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            with self._metrics.timing("program_request_seconds", endpoint=name):
                return await respond(request)

        async def respond(request: Request) -> Response:
            session = None
            try:
                header = request.headers.get("authorization", "")
                session = self._sessions.find(request.path_params["number"], header)
                response = await handle(request, session)
            except Refusal as refusal:
                response = _refused(refusal)
                if session is not None:
                    session.last_refusal = str(refusal)
            except Exception as error:  # uvicorn would answer it without a line in the log
                response = _refused(self._failed(error))
            self._count(name, response.status_code)
            return response

        return answer

    async def _chat(self, request: Request, session: Session) -> Response:
        sent = await self._body(request)
        body = requests.read_body(sent)
        wanted = requests.parse(requests.ChatRequest, body)
        self._check_sampling(body, session)
        if session.chats is None:
            raise Refusal(
                400, "the policy's tokenizer has no chat template; use /completions, or set model.path"
            )
        messages = [message.message(position) for position, message in enumerate(wanted.messages)]
        tools = requests.tools_of(body, wanted)
        sampling = partial(session.chats.complete, messages, tools, wanted.most, stop=wanted.stops)
        exchange = Exchange(session.undelivered, _digest("chat", sent))
        if not wanted.stream:
            replies = await answers.answered(request, session, exchange, sampling, wanted.n)
            content = responses.chat_completion(replies, wanted, self._spell)
            return answers.WholeAnswer(content, request=request, exchange=exchange)
        fields = responses.head("chatcmpl", "chat.completion.chunk", wanted.model)
        settled = partial(session.chats.settled, tools=bool(tools))
        stream = partial(streams.ChatStream, wanted, self._spell, settled, head=fields)
        choices = [stream(index=index) for index in range(wanted.n)]
        return await answers.streamed(
            request, session, exchange, sampling, answers.Streams(choices, wanted, fields, self._failed)
        )

    async def _complete(self, request: Request, session: Session) -> Response:
        sent = await self._body(request)
        body = requests.read_body(sent)
        wanted = requests.parse(requests.TextRequest, body)
        self._check_sampling(body, session)
        sampling = partial(session.texts.complete, wanted.text_or_ids(), wanted.max_tokens, stop=wanted.stops)
        exchange = Exchange(session.undelivered, _digest("completions", sent))
        if not wanted.stream:
            replies = await answers.answered(request, session, exchange, sampling, wanted.n)
            content = responses.text_completion(replies, wanted, self._spell)
            return answers.WholeAnswer(content, request=request, exchange=exchange)
        fields = responses.head("cmpl", "text_completion", wanted.model)
        stream = partial(streams.TextStream, wanted, self._spell, head=fields)
        choices = [stream(index=index) for index in range(wanted.n)]
        return await answers.streamed(
            request, session, exchange, sampling, answers.Streams(choices, wanted, fields, self._failed)
        )

    async def _models(self, request: Request, session: Session) -> Response:
        return JSONResponse(responses.models(MODEL))

    async def _body(self, request: Request) -> bytes:
        """Return the body of a request. Errors: Refusal for one that is too long or too slow."""
        body, size = bytearray(), 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    size += len(part)
                    if size <= self._most_bytes:
                        body += part
                    elif size > DISCARDED_BYTES:
                        break
        except TimeoutError:
            raise Refusal(408, f"the body did not come within {BODY_SECONDS:g} s") from None
        except ClientDisconnect:
            raise Refusal(499, "the client went away") from None
        if size > self._most_bytes:
            limit = f"{self._most_bytes // KIB} KiB (data.environment.request_kib)"
            raise Refusal(413, f"the body is over {limit}", code="request_too_large")
        return bytes(body)

    def _check_sampling(self, body: dict[str, Any], session: Session) -> None:
        names = parameters.changed(body, temperature=self._temperature)
        if names and self._refuse:
            raise Refusal(
                400,
                f"{', '.join(names)}: the policy is trained on the run's own distribution (temperature "
                f"{self._temperature:g}); leave it out, or set data.environment.sampling to override",
                parameter=names[0],
            )
        session.overridden.update(names)

    def _failed(self, error: Exception) -> Refusal:
        """Count and log an error of the endpoint, and return what the client gets."""
        self._internal_errors.report("endpoint", error)
        return Refusal(500, f"the endpoint of the actor has failed: {type(error).__name__}")

    def _count(self, name: str, status: int) -> None:
        self._metrics.count("program_requests_total", endpoint=name, status=str(status))

    async def _no_such_route(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        self._count("other", error.status_code)
        served = "/v1/chat/completions, /v1/completions and /v1/models"
        return _refused(Refusal(error.status_code, f"{error.detail}; this endpoint serves {served}"))


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # one of two classes, as installed
    """One of MOST_CONNECTIONS connections.

    An idle one ends for a new one, or when no request comes for the keep-alive time.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:
        """See asyncio.Protocol."""
        if len(self.connections) >= MOST_CONNECTIONS and not self._end_an_idle_one():
            self.transport = transport
            transport.abort()
            return
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _end_an_idle_one(self) -> bool:
        """End an idle connection; return whether there was one."""
        idle = (each for each in self.connections if each.cycle is None or each.cycle.response_complete)
        ended = next(idle, None)
        if ended is None:
            return False
        self.connections.discard(ended)
        ended.transport.abort()
        return True


@asynccontextmanager
async def serve(endpoint: Endpoint, log: logs.Log) -> AsyncIterator[str]:
    """Serve an endpoint on a free port of the loopback interface, and yield its URL."""
    raise_limit_of_files()
    listening = listen("127.0.0.1", 0, backlog=BACKLOG)
    settings = uvicorn.Config(
        endpoint.app(),
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # the response tells the client what is wrong
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=1,  # all sessions have ended, and their processes with them
    )
    server = _Server(settings)
    task = background.BackgroundTask.begin(server.serve(sockets=[listening]), "OpenAI endpoint", log)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task.settle()


def raise_limit_of_files() -> None:
    """Raise this process's soft limit of open files to OPEN_FILES, or as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Server(uvicorn.Server):
    """Leaves SIGTERM to the pod."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _digest(endpoint: str, body: bytes) -> bytes:
    """Return bytes that are equal for equal requests."""
    return sha256(endpoint.encode() + b" " + body).digest()


def _refused(refusal: Refusal) -> Response:
    headers = {"connection": "close"} if refusal.status in {408, 413} else {}
    if refusal.status == 429:
        headers["retry-after"] = "1"
    return JSONResponse(refusal.body(), status_code=refusal.status, headers=headers)
