"""The Verifier service over real gRPC on port 0."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import grpc
import pytest
from slipstream.config import RpcConfig, VerifierConfig
from slipstream.config.rewards import CountdownConfig, ExactMatchConfig, FormatConfig, RewardSection
from slipstream.records import Prompt
from slipstream.rpc.channel import open_channel
from slipstream.rpc.server import start_server
from slipstream.v1 import types_pb2 as types
from slipstream.v1 import verifier_pb2 as pb
from slipstream.v1.verifier_pb2_grpc import VerifierStub, add_VerifierServicer_to_server
from slipstream.verifier.adapters import EachAnswer
from slipstream.verifier.reward import Answer, Verdict
from slipstream.verifier.servicer import VerifierServicer
from verifier.scoring import Bench

RPC = RpcConfig()
EXACT = (ExactMatchConfig(name="exact_match"),)
COUNTDOWN = CountdownConfig(name="countdown")
Client = Callable[[pb.ScoreRequest], Awaitable[pb.ScoreResponse]]


@asynccontextmanager
async def serve(bench: Bench) -> AsyncIterator[Client]:
    """Start a gRPC server with the bench, and yield a client."""
    register = partial(add_VerifierServicer_to_server, VerifierServicer(bench.scorer, bench.programs))
    server = await start_server("127.0.0.1:0", register, config=RPC)
    async with bench, open_channel(server.address, RPC) as channel:
        stub = VerifierStub(channel)  # type: ignore[no-untyped-call, unused-ignore]
        yield partial(stub.Score, timeout=20)
    await server.stop(grace=0)


def bench(configs: Sequence[RewardSection] = EXACT, **verifier: int) -> Bench:
    return Bench(configs, config=VerifierConfig(**{"workers": 1, **verifier}))


def request(*texts: str, answer: str = "46", text: str = "12+34=", **fields: str) -> pb.ScoreRequest:
    return pb.ScoreRequest(
        prompt=types.Prompt(prompt_id="p1", task="t", text=text, answer=answer, fields=fields),
        answers=[pb.Answer(text=t, tokens=2, finish_reason=types.FINISH_REASON_STOP) for t in texts],
    )


def call(server: Bench, message: pb.ScoreRequest) -> pb.ScoreResponse:
    async def once() -> pb.ScoreResponse:
        async with serve(server) as score:
            return await score(message)

    return asyncio.run(once())


def scored(server: Bench, outcome: str) -> float | None:
    return server.sample("scores_total", reward="exact_match", outcome=outcome)


def values(response: pb.ScoreResponse) -> list[list[float]]:
    return [[reward.value for reward in vector.rewards] for vector in response.vectors]


def test_every_answer_gets_every_configured_reward_in_order() -> None:
    server = bench([COUNTDOWN, *EXACT, FormatConfig(name="format", pattern=r"\d\*\d")])
    response = call(server, request("3*8", "24", "12*2", answer="24", text="?", numbers="3 8"))
    assert [[r.name for r in vector.rewards] for vector in response.vectors] == [
        ["countdown", "exact_match", "format"]
    ] * 3
    assert values(response) == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]


def test_an_empty_answer_is_invalid() -> None:
    reward = call(bench(), request("")).vectors[0].rewards[0]
    assert (reward.value, reward.outcome, reward.detail) == (0, types.OUTCOME_INVALID_ANSWER, "empty answer")


def test_a_megabyte_of_one_character_is_scored() -> None:
    assert values(call(bench(), request("4" * 1_000_000, "46"))) == [[0], [1]]


def test_an_error_of_one_answer_leaves_the_others_scored_and_is_counted_and_logged() -> None:
    def fragile(prompt: Prompt, answer: Answer) -> Verdict:
        if answer.text == "bad":
            raise OSError("disk on fire")
        return Verdict(value=1.0)

    server = Bench(rewards={"exact_match": EachAnswer(fragile)})
    response = call(server, request("ok", "bad", "ok"))
    outcomes = [vector.rewards[0].outcome for vector in response.vectors]
    assert outcomes == [types.OUTCOME_SCORE, types.OUTCOME_ERROR, types.OUTCOME_SCORE]
    assert response.vectors[1].rewards[0].detail == "OSError: disk on fire"
    assert tuple(scored(server, outcome) for outcome in ("score", "error")) == (2, 1)
    assert 'reward failed prompt=p1 reward=exact_match detail="OSError: disk on fire"' in (
        server.lines.getvalue()
    )


def test_outcomes_and_time_are_measured() -> None:
    server = bench()
    assert scored(server, "error") == 0  # the counter exists from the start, so its first increase is visible
    call(server, request("46", "47", ""))
    assert scored(server, "score") == 2
    assert scored(server, "invalid_answer") == 1
    assert server.sample("score_seconds_count") == 1
    assert server.sample("reward_seconds_count", reward="exact_match") == 1
    assert server.sample("answers_waiting") == 0


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (request(), "no answers"),
        (request("46", answer=""), "prompt p1: no `answer`"),
        (request("46", text=""), "needs either text or messages"),
        (pb.ScoreRequest(prompt=request().prompt, answers=[pb.Answer(text="46")]), "finish_reason is 0"),
    ],
)
def test_the_error_of_an_invalid_request_says_what_is_missing(message: pb.ScoreRequest, reason: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=reason) as caught:
        call(bench(), message)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_missing_countdown_field_is_named() -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="field `numbers` needs 1 to 64 numbers"):
        call(bench([COUNTDOWN]), request("3*8", answer="24"))


def test_other_calls_get_responses_while_a_slow_pattern_runs() -> None:
    server = bench([FormatConfig(name="format", pattern="(a|a)+b|x")])

    async def slow_had_ended_before_the_quick_one() -> bool:
        async with serve(server) as score:
            await score(request("x"))
            slow = asyncio.ensure_future(score(request(*["a" * 5_000] * 8)))
            await asyncio.sleep(0.1)
            await score(request("x"))
            ended = slow.done()
            await slow
            return ended

    assert not asyncio.run(slow_had_ended_before_the_quick_one())


def test_scoring_eight_exact_matches_takes_less_than_a_millisecond() -> None:
    server, message = bench(), request(*["46"] * 8)

    async def many() -> float:
        servicer = VerifierServicer(server.scorer, server.programs)
        await servicer.Score(message, None)
        started = time.process_time()
        for _ in range(300):
            await servicer.Score(message, None)
        return (time.process_time() - started) / 300

    assert asyncio.run(many()) < 0.001
