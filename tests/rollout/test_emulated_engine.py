"""The emulated engine satisfies Engine, with the real transfer and without a model."""

import asyncio
import math
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from rollout.fakes import scenario, small_config
from rollout.learner_end import LearnerEnd
from slipstream.records import FinishReason, Sampling, Turn
from slipstream.rollout.emulated_engine import EmulatedEngine
from slipstream.weights.group import TransferError
from slipstream.weights.manifest import plan

SAMPLING = Sampling(temperature=1.0, max_tokens=10)
TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(5)}
MANIFEST = plan(
    [(name, tuple(tensor.shape)) for name, tensor in TENSORS.items()],
    dtype=torch.float32,
    bucket_bytes=32,
    model_fingerprint="print",
)


def make_engine(*, median: float = 0.2) -> EmulatedEngine:
    return EmulatedEngine(small_config(rollout={"emulated": {"median_seconds": median, "sigma": 0.0}}))


async def relabel(engine: EmulatedEngine, version: int, *, paused_seconds: float = 0.0) -> None:
    """Update the version without a transfer."""
    await engine.pause()
    await asyncio.sleep(paused_seconds)
    await engine.commit(version)
    await engine.resume()


def versions(turn: Turn) -> list[int]:
    return [span.version for span in turn.spans]


@scenario
async def test_a_turn_has_the_requested_length_and_the_logprobs_of_a_uniform_distribution() -> None:
    engine = make_engine(median=0.01)
    await engine.commit(3)
    turn = await engine.sample((1, 2), SAMPLING)
    assert len(turn.token_ids) == 10
    assert turn.finish_reason is FinishReason.LENGTH
    assert turn.logprobs == (-math.log(10),) * 10
    assert [(s.version, s.start, s.end) for s in turn.spans] == [(3, 0, 10)]


@pytest.mark.parametrize("top_k", [1, 4, 10, 20])
def test_top_logprobs_are_those_of_the_uniform_distribution(top_k: int) -> None:
    async def play() -> Turn:
        engine = make_engine(median=0.01)
        await engine.commit(3)
        return await engine.sample((1, 2), replace(SAMPLING, top_logprobs=top_k))

    turn = asyncio.run(play())
    top = turn.top_logprobs
    assert top is not None
    assert (top.tokens, top.top_k) == (10, top_k)
    ids = np.frombuffer(top.ids, "<u4").reshape(10, top_k)
    logprobs = np.frombuffer(top.logprobs, "<f4").reshape(10, top_k)
    assert (np.diff(logprobs[:, :10], axis=1) <= 0).all()  # likeliest first
    for own, logprob, ids_K, logprobs_K in zip(turn.token_ids, turn.logprobs, ids, logprobs, strict=True):
        logprob_by_id = dict(zip(ids_K.tolist(), logprobs_K.tolist(), strict=True))
        assert len(logprob_by_id) == top_k
        assert max(logprob_by_id) < 99  # a token of the tiny model
        assert logprob_by_id.get(own, logprob) == pytest.approx(logprob)
        assert sum(map(math.exp, logprob_by_id.values())) == pytest.approx(min(top_k, 10) / 10)
    if top_k >= 10:
        assert set(turn.token_ids) <= set(ids[0].tolist())


@scenario
async def test_top_logprobs_are_returned_only_on_request() -> None:
    engine = make_engine(median=0.01)
    await engine.commit(3)
    assert (await engine.sample((1, 2), SAMPLING)).top_logprobs is None


@scenario
async def test_spans_tile_the_turn_and_name_every_version_that_was_served() -> None:
    engine = make_engine(median=1.0)
    await engine.commit(1)
    sampling = asyncio.create_task(engine.sample((1,), SAMPLING))
    for version in (2, 3):
        await asyncio.sleep(0.3)
        await relabel(engine, version)
    turn = await sampling
    assert versions(turn) == [1, 2, 3]
    assert [turn.spans[0].start, turn.spans[-1].end] == [0, 10]
    assert all(left.end == right.start for left, right in pairwise(turn.spans))


@scenario
async def test_nothing_is_sampled_while_paused() -> None:
    engine = make_engine(median=0.1)
    await engine.commit(1)
    started = time.monotonic()
    sampling = asyncio.create_task(engine.sample((1,), SAMPLING))
    await relabel(engine, 2, paused_seconds=0.3)
    turn = await sampling
    assert versions(turn) == [2]
    assert time.monotonic() - started >= 0.3 + 0.08


@scenario
async def test_a_request_that_arrives_in_a_pause_is_sampled_with_the_next_version() -> None:
    engine = make_engine(median=0.01)
    await engine.commit(1)
    await engine.pause()
    sampling = asyncio.create_task(engine.sample((1,), SAMPLING))
    await asyncio.sleep(0.05)
    assert not sampling.done()
    await engine.commit(2)
    await engine.resume()
    assert versions(await sampling) == [2]


@scenario
async def test_weights_arrive_through_the_real_transfer_and_damaged_weights_are_an_error() -> None:
    engine, learner = make_engine(median=0.01), LearnerEnd(timeout_seconds=5)
    await learner.update(engine, MANIFEST, TENSORS, version=4)
    assert versions(await engine.sample((1,), SAMPLING)) == [4]
    sending = asyncio.create_task(
        asyncio.to_thread(learner.send, MANIFEST, TENSORS, version=5, damage_from_bucket=1)
    )
    with pytest.raises(TransferError, match="bucket 1 of version 5 arrived damaged"):
        await engine.receive(MANIFEST, 5)
    await sending
    await learner.form(engine)
    await learner.update(engine, MANIFEST, TENSORS, version=6)
    assert versions(await engine.sample((1,), SAMPLING)) == [6]
    await engine.close()
    learner.close()


@scenario
async def test_weights_without_a_group_are_an_error() -> None:
    with pytest.raises(TransferError, match="before a group was formed"):
        await make_engine().receive(MANIFEST, 1)
