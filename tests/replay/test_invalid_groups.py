"""A malformed group never reaches a step: it is counted, its worker is named, and the ledger closes."""

import asyncio
import io
import json
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from replay.driver import (
    ACCEPTED,
    DUPLICATE,
    FILTERED,
    Driver,
    completion,
    failure,
    group,
    packed,
    scenario,
    serving,
)
from replay.driver import run_config as configured
from slipstream.config import RunConfig
from slipstream.learner.clients import ReplayClient
from slipstream.records import START
from slipstream.replay.summary import summarise
from slipstream.rpc import codec, replay_codec
from slipstream.rpc.channel import open_channel
from slipstream.rpc.group_checks import vocabulary_size
from slipstream.v1 import packed_pb2, replay_pb2, types_pb2

VOCABULARY = 100
NAN, INFINITY = float("nan"), float("inf")
Spoil = Callable[[types_pb2.Group], None]


def of_second(change: Callable[[types_pb2.Completion], object]) -> Spoil:
    """Return a function that changes the second completion."""
    return lambda message: void(change(message.completions[1]))


def void(_: object) -> None:
    return None


def with_top(top_k: int, ids: list[int], logprobs: list[float]) -> Spoil:
    """The second completion, of three sampled tokens, with these likeliest tokens."""
    packed_ids, packed_logprobs = struct.pack(f"<{len(ids)}I", *ids), struct.pack(f"<{len(ids)}f", *logprobs)
    top = types_pb2.TopLogprobs(top_k=top_k, ids=packed_ids, logprobs=packed_logprobs)
    return of_second(lambda c: c.top_logprobs.CopyFrom(top))


def later_segment(**changes: Any) -> Spoil:
    """The second completion has another segment, of two sampled tokens, with these changes."""
    span = types_pb2.VersionSpan(version=0, start=0, end=2)
    fields = {
        "token_ids": [5, 6],
        "logprobs": [-1.0, -1.0],
        "mask": b"\1\1",
        "spans": [span],
        "finish_reason": types_pb2.FINISH_REASON_STOP,
        "prompt_token_ids": [7],
    }
    return of_second(lambda c: c.later_segments.append(types_pb2.Segment(**{**fields, **changes})))


def together(*spoils: Spoil) -> Spoil:
    return lambda message: void([spoil(message) for spoil in spoils])


FAULTS: dict[str, tuple[Spoil, str]] = {
    "a later segment's token outside the vocabulary": (
        later_segment(token_ids=[5, VOCABULARY]),
        "completion 1: segment 1: token 100, and the largest token id of the model is 99",
    ),
    "a later segment's prompt outside the vocabulary": (
        later_segment(prompt_token_ids=[VOCABULARY]),
        "completion 1: segment 1: token 100, and the largest token id of the model is 99",
    ),
    "a turn that is there twice": (
        together(
            later_segment(turn_ends=[types_pb2.TurnEnd(number=0, token_end=2)]),
            of_second(lambda c: c.turn_ends.add(number=0, token_end=3)),
        ),
        "completion 1: turns have the numbers [0, 0]; each turn has a number of its own",
    ),
    "a turn that ends beyond its segment": (
        later_segment(turn_ends=[types_pb2.TurnEnd(number=0, token_end=3)]),
        "completion 1: turns end at the tokens [3]; they must not fall, and the segment has 2 tokens",
    ),
    "a step in a segment that is not there": (
        of_second(lambda c: c.rewards[0].steps.add(value=0, token_end=1, segment=1)),
        "completion 1: reward exact_match has steps in the segments [1], and there are 1 segments",
    ),
    "a step that ends beyond its segment": (
        together(
            later_segment(),
            of_second(lambda c: c.rewards[0].steps.add(value=0, token_end=3, segment=1)),
        ),
        "completion 1: reward exact_match has steps that end at the tokens [3]; they must not fall",
    ),
    "a token outside the vocabulary": (
        of_second(lambda c: c.token_ids.__setitem__(1, VOCABULARY)),
        "completion 1: token 100, and the largest token id of the model is 99",
    ),
    "a negative token": (
        of_second(lambda c: c.token_ids.__setitem__(2, 2**32 - 1)),
        "completion 1: token 4294967295, and the largest token id of the model is 99",
    ),
    "a prompt outside the vocabulary": (
        lambda message: message.prompt_token_ids.append(VOCABULARY),
        "prompt: token 100, and the largest token id of the model is 99",
    ),
    "a logprob that is NaN": (
        of_second(lambda c: c.logprobs.__setitem__(0, NAN)),
        "completion 1: logprob nan; a logprob is a number, and at most 0",
    ),
    "a logprob above 0": (
        of_second(lambda c: c.logprobs.__setitem__(0, 0.5)),
        "completion 1: logprob 0.5; a logprob is a number, and at most 0",
    ),
    "an infinite logprob": (
        of_second(lambda c: c.logprobs.__setitem__(0, INFINITY)),
        "completion 1: logprob inf; a logprob is a number, and at most 0",
    ),
    "an infinitely unlikely token": (
        of_second(lambda c: c.logprobs.__setitem__(0, -INFINITY)),
        "completion 1: logprob -inf, of a token that was sampled all the same",
    ),
    "a logprob too many": (
        of_second(lambda c: c.logprobs.append(-1.0)),
        "completion 1: token_ids, logprobs and mask must be equally long, got 3, 4, 3",
    ),
    "a mask too short": (
        of_second(lambda c: setattr(c, "mask", b"\1\1")),
        "completion 1: token_ids, logprobs and mask must be equally long, got 3, 3, 2",
    ),
    "a mask of other numbers": (
        of_second(lambda c: setattr(c, "mask", b"\1\2\0")),
        "completion 1: mask has 2; it is 1 or 0",
    ),
    "a step without a score": (
        of_second(lambda c: c.rewards[0].steps.add(value=NAN, text_end=1, token_end=1)),
        "completion 1: reward exact_match has a step whose score is no finite number",
    ),
    "steps that go back": (
        of_second(lambda c: [c.rewards[0].steps.add(value=0, token_end=end) for end in (2, 1)]),
        "completion 1: reward exact_match has steps that end at the tokens [2, 1]; they must not fall",
    ),
    "a step that ends beyond the tokens": (
        of_second(lambda c: c.rewards[0].steps.add(value=0, token_end=4)),
        "completion 1: reward exact_match has steps that end at the tokens [4]; they must not fall",
    ),
    "spans that end early": (
        of_second(lambda c: setattr(c.spans[0], "end", 2)),
        "completion 1: spans end at 2, but there are 3 tokens",
    ),
    "spans that overlap": (
        of_second(lambda c: c.spans.add(version=0, start=2, end=4)),
        "completion 1: spans must tile its tokens, got one from 2 to 4 behind 3",
    ),
    "a negative version": (
        of_second(lambda c: setattr(c.spans[0], "version", -1)),
        "completion 1: a span of version -1",
    ),
    "a completion without rewards": (
        of_second(lambda c: c.ClearField("rewards")),
        "completion 1: it has no rewards",
    ),
    "a reward that is NaN": (
        of_second(lambda c: setattr(c.rewards[0], "value", NAN)),
        "completion 1: reward exact_match is nan",
    ),
    "no reason to end": (
        of_second(lambda c: c.ClearField("finish_reason")),
        "completion 1: finish_reason is 0, which is not a known value",
    ),
    "experts of more tokens than there are": (
        of_second(
            lambda c: c.routed_experts.CopyFrom(
                types_pb2.RoutedExperts(tokens=6, layers=1, top_k=1, id_bytes=1, ids=bytes(6))
            )
        ),
        "completion 1: routed experts of 6 tokens, and prompt and completion have 5",
    ),
    "top logprobs of fewer tokens than were sampled": (
        with_top(1, [1, 2], [-1.0, -1.0]),
        "completion 1: top logprobs of 2 tokens, and the policy sampled 3",
    ),
    "top logprobs of tokens outside the vocabulary": (
        with_top(1, [1, VOCABULARY, 2], [-1.0] * 3),
        "completion 1: token 100, and the largest token id of the model is 99",
    ),
    "a top logprob that is NaN": (
        with_top(1, [1, 2, 3], [-1.0, NAN, -1.0]),
        "completion 1: top logprob nan; a logprob is a number, and at most 0",
    ),
    "top logprobs of one token twice": (
        with_top(2, [1, 2, 1, 1, 1, 2], [-0.5, -3.0, -0.5, -0.5, -0.5, -INFINITY]),
        "completion 1: top logprobs whose probabilities add up to 1.21 at one token",
    ),
}
IN_REDIS_ONLY = {
    "a version that no learner has made": (
        of_second(lambda c: setattr(c.spans[0], "version", 7)),
        "version 7 sampled it, and version 2 is the newest that there is",
    ),
    "a completion too few": (
        lambda message: message.completions.__delitem__(1),
        "it has 1 completions, and its lease asked for 2",
    ),
}


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """Write the part of a model directory that replay reads."""
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": VOCABULARY}))
    return tmp_path


def run_config(model_dir: Path) -> RunConfig:
    config = configured()
    return config.model_copy(
        update={"model": config.model.model_copy(update={"path": model_dir, "tiny": None})}
    )


@pytest.mark.parametrize("fault", [*FAULTS, *IN_REDIS_ONLY])
def test_a_malformed_group_is_refused_at_insertion_and_counted(
    redis_url: str, model_dir: Path, fault: str
) -> None:
    spoil, words = {**FAULTS, **IN_REDIS_ONLY}[fault]

    async def play(replay: Driver) -> None:
        await replay.announce(2)
        good, bad = await replay.lease(2)
        message = codec.group_to_proto(group(bad, [completion(), completion(reward=0.0)]))
        spoil(message)
        response = await replay.insert_message(message)
        assert (response.outcome, response.filter_reason) == (FILTERED, "invalid")
        assert words in response.detail
        (line,) = warnings(replay)
        assert f"worker=w group={bad.group_id}" in line
        assert words in line
        assert await replay.insert_message(message) == replay_pb2.InsertGroupResponse(outcome=DUPLICATE)
        assert await replay.insert(good) == ACCEPTED
        ledger = await replay.ledger()
        assert (ledger.filtered, ledger.inserted, ledger.buffered) == ({"invalid": 1}, 2, 1)
        assert ledger.tokens_inserted == 6
        assert await replay.stored_bytes(bad.group_id) is None
        free = (await replay.stats()).admission_free
        assert len(await replay.lease(100)) == free == (2 + 2 + 1) * 4 - 1  # its slot is free again

    play_with(run_config(model_dir), play, redis_url)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_group_that_got_into_the_buffer_is_dropped_by_the_learner(
    redis_url: str, model_dir: Path, fault: str
) -> None:
    spoil, words = FAULTS[fault]

    async def play(replay: Driver) -> None:
        leases = await replay.lease(5)
        for lease in leases:
            finished = group(lease, [completion(), completion(reward=0.0)])
            message = codec.group_to_proto(finished)
            if lease == leases[1]:
                spoil(message)
            summary = summarise(packed(finished), {"exact_match": 1.0})
            await replay.store.insert(lease.group_id, lease.lease_epoch, summary, message.SerializeToString())
        async with open_channel(replay.address, replay.config.rpc) as channel:
            client = ReplayClient(channel, replay.config, log=replay.log)
            await client.attach(0, START)
            batch = await client.sample(0)
            assert [g.dispatch_index for g in batch] == [0, 2, 3, 4]
            await client.ack(batch, 1)
        (line,) = warnings(replay)
        assert f"group={leases[1].group_id}" in line
        assert f"from worker w: {words}" in line
        stats = await replay.stats()
        ledger = replay_codec.ledger_from_proto(stats.ledger)
        assert (ledger.dropped, ledger.trained, ledger.in_flight) == ({"invalid": 1}, 4, 0)
        assert await replay.stored_bytes(leases[1].group_id) is None

    play_with(run_config(model_dir), play, redis_url)


@scenario()
async def test_an_invalid_answer_of_an_evaluation_counts_as_not_scored(replay: Driver) -> None:
    name = await replay.start_evaluation(prompts=2, samples=2)
    first, second = await replay.lease(2)
    message = codec.group_to_proto(group(first, [completion(), completion()]))
    message.completions[0].logprobs[0] = NAN
    response = await replay.insert_message(message)
    assert (response.outcome, response.filter_reason) == (FILTERED, "invalid")
    assert await replay.insert(second) == ACCEPTED
    evaluation = await replay.evaluation(name)
    assert (evaluation.done, evaluation.completions, evaluation.errors, evaluation.accuracy) == (
        True,
        2,
        2,
        1.0,
    )


@scenario()
async def test_versions_that_a_learner_made_stay_valid_when_it_goes_back_behind_them(replay: Driver) -> None:
    (lease,) = await replay.lease()
    await replay.attach(0)
    await replay.acknowledge([], version=1)  # version 1 is made and published, and not announced yet
    assert await replay.insert(lease, version=1) == ACCEPTED
    await replay.attach(0)
    (lease,) = await replay.lease()
    assert await replay.insert(lease, version=1) == ACCEPTED


@scenario()
async def test_bytes_that_are_no_group_are_an_error_of_the_call(replay: Driver) -> None:
    call = replay.stub.InsertGroup(replay_pb2.InsertGroupRequest(group=b"\xff\xff"))
    assert (await failure(call)).code() is grpc.StatusCode.INVALID_ARGUMENT


def test_the_vocabulary_is_that_of_the_text_model(tmp_path: Path) -> None:
    assert vocabulary_size(tmp_path) is None
    for text, size in (
        ('{"vocab_size": 7}', 7),
        ('{"vocab_size": 7, "text_config": {"vocab_size": 8}}', 8),
        ('{"vocab_size": 7, "text_config": {}}', 7),
        ("[]", None),
        ("{", None),
    ):
        (tmp_path / "config.json").write_text(text)
        assert vocabulary_size(tmp_path) == size


def test_a_packed_message_has_the_field_numbers_of_the_message_itself() -> None:
    for name in ("Group", "Completion", "Prompt"):
        fields_of_message = getattr(types_pb2, name).DESCRIPTOR.fields_by_name
        part = getattr(packed_pb2, f"Packed{name}").DESCRIPTOR.fields_by_name
        assert {n: f.number for n, f in part.items()} == {n: fields_of_message[n].number for n in part}


def warnings(replay: Driver) -> list[str]:
    """Return the log lines about invalid groups."""
    assert isinstance(replay.log.stream, io.StringIO)
    return [line for line in replay.log.stream.getvalue().splitlines() if "invalid group" in line]


def play_with(config: RunConfig, test: Callable[[Driver], Awaitable[None]], redis_url: str) -> None:
    """Run a test with a service of this configuration; at the end the equations of the ledger must hold."""

    async def play() -> None:
        async with serving(redis_url, config) as replay:
            await test(replay)
            assert (await replay.stats()).residual == 0

    asyncio.run(asyncio.wait_for(play(), 60))
