"""Held-out evaluations, which never touch the training ledger."""

import asyncio

import grpc
import pytest
from replay.driver import ACCEPTED, DUPLICATE, FENCED, Driver, completion, failure, scenario
from slipstream.types import Ledger
from slipstream.v1 import replay_pb2 as pb


@scenario()
async def test_evaluation_prompts_come_before_training_and_need_no_admission(replay: Driver) -> None:
    everything = await replay.lease(100)
    assert len(everything) == 12
    await replay.start_evaluation(prompts=3, samples=5)
    leases = await replay.lease(100)
    assert [lease.prompt.text for lease in leases] == ["held out 0", "held out 1", "held out 2"]
    assert {lease.group_size for lease in leases} == {5}
    assert {lease.purpose for lease in leases} == {pb.PURPOSE_EVALUATION}


@scenario()
async def test_an_evaluation_of_a_later_version_waits_for_a_worker_that_serves_it(replay: Driver) -> None:
    await replay.start_evaluation(version=3, prompts=2)
    assert {lease.purpose for lease in await replay.lease(2, serving=2)} == {pb.PURPOSE_TRAINING}
    assert {lease.purpose for lease in await replay.lease(2, serving=3)} == {pb.PURPOSE_EVALUATION}


@scenario()
async def test_accuracy_is_the_mean_over_scored_completions_and_errors_are_counted(replay: Driver) -> None:
    name = await replay.start_evaluation(version=0, prompts=2, samples=2)
    first, second = await replay.lease(2)
    await replay.insert_completions(first, [completion(reward=1.0), completion(reward=None)])
    halfway = await replay.evaluation(name)
    assert (halfway.done, halfway.completions, halfway.errors, halfway.accuracy) == (False, 1, 1, 1.0)
    answers = [completion(reward=0.25, version=4, tokens=6), completion(reward=0.0, version=4, tokens=6)]
    await replay.insert_completions(second, answers)
    done = await replay.evaluation(name)
    assert (done.done, done.version, done.completions, done.errors) == (True, 0, 3, 1)
    assert done.accuracy == pytest.approx(1.25 / 3)
    assert done.mean_version == pytest.approx(4 * 12 / 18)


@scenario(lease_seconds=0.05)
async def test_an_evaluation_never_touches_the_training_ledger(replay: Driver) -> None:
    await replay.start_evaluation(prompts=4, samples=2)
    returned, expired, kept, failed = await replay.lease(4)
    await replay.give_back(returned)
    await replay.insert(kept)
    await replay.insert(kept)
    await replay.insert(failed, reward=None)
    await asyncio.sleep(0.06)
    await replay.store.expire()
    await replay.insert(expired)
    assert await replay.ledger() == Ledger()
    assert (await replay.stats()).admission_free == 12


@scenario(lease_seconds=0.05)
async def test_an_evaluation_prompt_is_counted_once_whoever_hands_it_in(replay: Driver) -> None:
    name = await replay.start_evaluation(prompts=1, samples=2)
    (late,) = await replay.lease(1)
    await asyncio.sleep(0.06)
    (again,) = await replay.lease(1)
    assert (again.group_id, again.lease_epoch) == (late.group_id, 2)
    assert await replay.insert(late) == FENCED
    assert await replay.insert(again) == ACCEPTED
    assert await replay.insert(again) == DUPLICATE
    found = await replay.evaluation(name)
    assert (found.done, found.completions) == (True, 2)


@scenario()
async def test_two_evaluations_may_run_at_once_and_have_names_of_their_own(replay: Driver) -> None:
    first, second = [await replay.start_evaluation(version=0, prompts=2) for _ in range(2)]
    assert first != second
    for lease in await replay.lease(4):
        await replay.insert(lease, reward=1.0 if lease.group_id.startswith(first) else 0.0)
    assert (await replay.evaluation(first)).accuracy == 1.0
    assert (await replay.evaluation(second)).accuracy == 0.0


@scenario()
async def test_an_evaluation_asks_no_held_out_prompt_twice(replay: Driver) -> None:
    name = await replay.start_evaluation(prompts=1000)
    leases = [lease for lease in await replay.lease(100) if lease.purpose == pb.PURPOSE_EVALUATION]
    assert len({lease.prompt.prompt_id for lease in leases}) == len(leases) == 10
    for lease in leases:
        await replay.insert(lease)
    assert (await replay.evaluation(name)).done


@scenario()
async def test_an_evaluation_that_cannot_be_is_refused_in_words(replay: Driver) -> None:
    empty = await failure(replay.start_evaluation(prompts=0))
    assert "prompts is 0; it must be at least 1" in str(empty.details())
    request = pb.StartEvaluationRequest(
        prompts=1, samples_per_prompt=1, reward="beauty", request_id="a request"
    )
    unknown = await failure(replay.stub.StartEvaluation(request))
    assert "reward is 'beauty'" in str(unknown.details())
    missing = await failure(replay.evaluation("e000000099"))
    assert missing.code() is grpc.StatusCode.NOT_FOUND
