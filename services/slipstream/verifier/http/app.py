"""POST /v1/score: the same scorer as over gRPC."""

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from slipstream import __version__
from slipstream.rpc.errors import Busy, InvalidRequest
from slipstream.verifier.http.models import Refusal, ScoreIn, ScoreOut, component_out
from slipstream.verifier.scorer import Scorer

REFUSALS: dict[int | str, dict[str, Any]] = {
    403: {
        "model": Refusal,
        "description": "The certificate entitles nobody to score, or a page in a browser asks.",
    },
    408: {"model": Refusal, "description": "The body did not come in time."},
    413: {"model": Refusal, "description": "The body is larger than rpc.max_message_mib."},
    421: {"model": Refusal, "description": "On loopback: the Host is not this machine."},
    422: {"model": Refusal, "description": "The request cannot be right, now or later."},
    429: {
        "model": Refusal,
        "description": "The queue is full; come again after Retry-After seconds.",
        "headers": {"Retry-After": {"description": "Whole seconds.", "schema": {"type": "integer"}}},
    },
    500: {"model": Refusal, "description": "The verifier failed; its log says why."},
    503: {"description": "Too many connections."},
}
MAX_PROBLEMS = 5


def make_app(scorer: Scorer) -> FastAPI:
    """The application; GET /v1/openapi.json describes it."""
    app = FastAPI(
        title="Slipstream verifier",
        version=__version__,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )

    @app.post("/v1/score", responses=REFUSALS, operation_id="score")
    async def score(request: ScoreIn) -> ScoreOut:
        """Score all answers to one prompt by every configured reward."""
        prompt = request.prompt.to_prompt()
        vectors = await scorer.score(prompt, [answer.to_answer() for answer in request.answers])
        return ScoreOut(vectors=[[component_out(one) for one in vector] for vector in vectors])

    handlers: Sequence[tuple[type[Exception], Callable[[Request, Any], Awaitable[JSONResponse]]]] = (
        (RequestValidationError, _not_valid),
        (HTTPException, _no_such_thing),
        (InvalidRequest, _cannot_be_right),
        (ValueError, _cannot_be_right),
        (Busy, _busy),
        (Exception, _broken),
    )
    for error, handler in handlers:
        app.add_exception_handler(error, handler)
    return app


async def _not_valid(request: Request, error: RequestValidationError) -> JSONResponse:
    if "json" not in request.headers.get("content-type", ""):
        return _refusal(422, "send JSON, with content-type: application/json")
    errors = error.errors()
    inside = {tuple(problem["loc"][:-1]) for problem in errors}
    problems = [_in_words(problem) for problem in errors if not _echo(problem, inside)]
    return _refusal(422, "; ".join(problems[:MAX_PROBLEMS]))


def _in_words(problem: dict[str, Any]) -> str:
    if problem["type"] == "json_invalid":
        return f"the body is not JSON: {problem['ctx']['error']}, at character {problem['loc'][-1]}"
    return f"{'.'.join(str(part) for part in problem['loc'][1:]) or 'body'}: {problem['msg']}"


def _echo(problem: dict[str, Any], inside: set[tuple[Any, ...]]) -> bool:
    """Whether a list is only found too short for what is wrong inside of it."""
    place = tuple(problem["loc"])
    return problem["type"] == "too_short" and any(other[: len(place)] == place for other in inside)


async def _no_such_thing(_: Request, error: HTTPException) -> JSONResponse:
    if error.status_code == 400:  # the body could not be decoded
        return _refusal(422, "the body is not JSON in UTF-8, or is nested too deeply")
    headers = dict(error.headers) if error.headers else None
    return _refusal(error.status_code, f"{error.detail}; POST /v1/score takes JSON", headers)


async def _cannot_be_right(_: Request, error: Exception) -> JSONResponse:
    return _refusal(422, str(error))


async def _busy(_: Request, error: Busy) -> JSONResponse:
    seconds = str(math.ceil(error.retry_after_seconds))
    return _refusal(429, str(error), {"retry-after": seconds})


async def _broken(_: Request, error: Exception) -> JSONResponse:
    return _refusal(500, f"the verifier failed: {type(error).__name__}; its log says more")


def _refusal(status: int, error: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": error}, status_code=status, headers=headers)
