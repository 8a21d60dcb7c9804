"""Held-out evaluations: their metrics, and that they leave the training ledger unchanged."""

import asyncio
from dataclasses import replace

import grpc
import pytest
from replay.driver import ACCEPTED, DUPLICATE, FENCED, FILTERED, Driver, completion, failure, group, scenario
from slipstream.records import Completion, Ledger, Outcome, Reward
from slipstream.replay.selection import select
from slipstream.rpc import codec
from slipstream.v1 import replay_pb2 as pb
from slipstream.v1 import types_pb2
from slipstream.v1.packed_pb2 import PackedGroup


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


def answer(text: str, reward: float | None, *, style: float = 0.0, valid: bool = True) -> Completion:
    """Return a completion with the rewards exact_match, which extracted `text`, and style, of weight 1/2."""
    (judged,) = completion(reward=reward).rewards
    outcome = judged.outcome if valid else Outcome.INVALID_ANSWER
    rewards = (
        replace(judged, answer=text, outcome=outcome),
        Reward(name="style", value=style, outcome=Outcome.SCORE),
    )
    return replace(completion(), rewards=rewards)


def chosen(*answers: Completion) -> tuple[float | None, float | None]:
    """Return exact_match of the best completion and of the most frequent answer."""
    lease = pb.Lease(group_id="e", lease_epoch=1, prompt=types_pb2.Prompt(prompt_id="p", text="2 + 2 ="))
    message = codec.group_to_proto(group(lease, answers))
    packed = PackedGroup.FromString(message.SerializeToString())
    selected = select(packed, {"exact_match": 1.0, "style": 0.5})["exact_match"]
    return selected.best, selected.majority


def test_the_best_of_n_is_the_completion_that_all_rewards_together_rank_first() -> None:
    # totals 1.0, 0.9, 0.4: the correct one; then 1.0 and 1.0: a tie of a correct and a wrong one, mean 1/2
    assert chosen(answer("4", 1.0), answer("5", 0.0, style=1.8), answer("6", 0.4))[0] == 1.0
    assert chosen(answer("4", 1.0), answer("5", 0.0, style=2.0))[0] == 0.5
    assert chosen(answer("5", 0.0, style=0.2), answer("6", 0.25, style=0.0))[0] == 0.25
    failed = answer("7", None, style=9.0)
    assert chosen(answer("4", 1.0), failed)[0] == 1.0


def test_the_majority_is_the_most_frequent_answer_though_another_may_be_better() -> None:
    wrong = [answer("5", 0.0), answer(" 5 ", 0.0)]
    assert chosen(answer("4", 1.0), *wrong)[1] == 0.0
    assert chosen(answer("4", 1.0), answer("4.0", 1.0), answer("four", 1.0), *wrong)[1] == 1.0
    assert chosen(answer("4", 1.0), answer("5", 0.0))[1] == 0.5  # a tie
    assert chosen(answer("x", 0.2), answer("X", 0.2), answer("y", 0.9))[1] == pytest.approx(0.2)


def test_a_completion_without_a_valid_answer_has_no_vote() -> None:
    nothing = [answer("", 0.0, valid=False), answer("", 0.0, valid=False)]
    assert chosen(answer("4", 1.0), *nothing)[1] == 1.0
    assert chosen(*nothing)[1] == 0.0


def test_answers_that_no_reward_extracts_are_compared_by_their_tokens() -> None:
    other = replace(answer("", 0.0), token_ids=(7, 8, 9))
    assert chosen(answer("", 0.5), answer("", 0.5), other)[1] == 0.5
    assert chosen(answer("", 0.5), other, other)[1] == 0.0


@scenario()
async def test_best_and_majority_are_means_over_the_prompts_with_a_scored_completion(replay: Driver) -> None:
    name = await replay.start_evaluation(version=0, prompts=3, samples=3)
    first, second, third = await replay.lease(3)
    await replay.insert_completions(first, [completion(reward=r, tokens=3) for r in (1.0, 0.0, 0.0)])
    halfway = await replay.evaluation(name)
    assert (halfway.best_of_n, halfway.majority) == (1.0, 0.0)
    await replay.insert_completions(second, [completion(reward=0.5, tokens=3 + i) for i in range(3)])
    await replay.insert_rewards(third, None, None, None)
    done = await replay.evaluation(name)
    assert (done.done, done.completions) == (True, 6)
    assert done.best_of_n == pytest.approx((1.0 + 0.5) / 2)
    assert done.majority == pytest.approx((0.0 + 0.5) / 2)
    assert done.accuracy == pytest.approx(2.5 / 6)


@scenario()
async def test_an_evaluation_without_a_scored_completion_has_no_accuracy(replay: Driver) -> None:
    evaluation = await replay.evaluation(await replay.start_evaluation(prompts=1))
    assert not any(evaluation.HasField(name) for name in ("accuracy", "best_of_n", "majority"))


@scenario(lease_seconds=0.05)
async def test_an_evaluation_never_touches_the_training_ledger(replay: Driver) -> None:
    await replay.start_evaluation(prompts=4, samples=2)
    returned, expired, kept, failed = await replay.lease(4)
    await replay.return_leases(returned)
    await replay.insert(kept)
    await replay.insert(kept)
    await replay.insert(failed, reward=None)
    await asyncio.sleep(0.06)
    await replay.store.expire()
    await replay.insert(expired)
    assert await replay.ledger() == Ledger()
    assert (await replay.stats()).admission_free == 12


@scenario(lease_seconds=0.05)
async def test_an_evaluation_prompt_is_counted_once_whichever_worker_inserts_it(replay: Driver) -> None:
    name = await replay.start_evaluation(prompts=1, samples=2)
    (late,) = await replay.lease(1)
    await asyncio.sleep(0.06)
    (again,) = await replay.lease(1)
    assert (again.group_id, again.lease_epoch) == (late.group_id, 2)
    assert await replay.insert(late) == FENCED
    assert await replay.insert(again) == ACCEPTED
    assert await replay.insert(again) == DUPLICATE
    evaluation = await replay.evaluation(name)
    assert (evaluation.done, evaluation.completions) == (True, 2)


@scenario()
async def test_two_evaluations_may_run_at_once_under_different_ids(replay: Driver) -> None:
    first, second = [await replay.start_evaluation(version=0, prompts=2) for _ in range(2)]
    assert first != second
    for lease in await replay.lease(4):
        await replay.insert(lease, reward=1.0 if lease.group_id.startswith(first) else 0.0)
    assert (await replay.evaluation(first)).accuracy == 1.0
    assert (await replay.evaluation(second)).accuracy == 0.0


@scenario()
async def test_an_evaluation_leases_no_held_out_prompt_twice(replay: Driver) -> None:
    name = await replay.start_evaluation(prompts=1000)
    leases = [lease for lease in await replay.lease(100) if lease.purpose == pb.PURPOSE_EVALUATION]
    assert len({lease.prompt.prompt_id for lease in leases}) == len(leases) == 10
    for lease in leases:
        await replay.insert(lease)
    assert (await replay.evaluation(name)).done


@scenario()
async def test_an_impossible_evaluation_is_an_error_with_the_reason(replay: Driver) -> None:
    empty = await failure(replay.start_evaluation(prompts=0))
    assert "prompts is 0; it must be at least 1" in str(empty.details())
    request = pb.StartEvaluationRequest(
        prompts=1, samples_per_prompt=1, reward="beauty", request_id="a request"
    )
    unknown = await failure(replay.stub.StartEvaluation(request))
    assert "reward is 'beauty'" in str(unknown.details())
    missing = await failure(replay.evaluation("e000000099"))
    assert missing.code() is grpc.StatusCode.NOT_FOUND


async def evaluated(replay: Driver, name: str, start: int = 1) -> list[tuple[int, str]]:
    """Return number and id of the groups of an evaluation that replay still has."""
    request = pb.TakeEvaluatedRequest(evaluation_id=name, start=start)
    answers = [answer async for answer in replay.stub.TakeEvaluated(request)]
    return [(answer.number, types_pb2.Group.FromString(answer.group).group_id) for answer in answers]


@scenario()
async def test_the_learner_takes_the_groups_of_an_evaluation_and_may_ask_again(replay: Driver) -> None:
    name = await replay.start_evaluation(prompts=3)
    assert await evaluated(replay, name) == []
    leases = await replay.lease(3)
    message = codec.group_to_proto(group(leases[0], [completion(), completion(reward=None)]))
    await replay.insert_message(message)
    await replay.insert(leases[1])
    request = pb.TakeEvaluatedRequest(evaluation_id=name, start=1)
    answers = [answer async for answer in replay.stub.TakeEvaluated(request)]
    assert answers[0].group == message.SerializeToString()
    both = [(1, leases[0].group_id), (2, leases[1].group_id)]
    assert await evaluated(replay, name) == both
    await replay.insert(leases[2])
    assert await evaluated(replay, name, 2) == [both[1], (3, leases[2].group_id)]
    assert await evaluated(replay, name) == [both[1], (3, leases[2].group_id)]
    assert await evaluated(replay, name, 4) == []
    assert await evaluated(replay, name) == []


@scenario()
async def test_large_evaluations_are_taken_in_several_reads(replay: Driver) -> None:
    name = await replay.start_evaluation(prompts=5)
    leases = await replay.lease(5)
    for lease in leases:
        await replay.insert(lease)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slipstream.replay.evaluations.READ_BYTES", 1)
        assert await evaluated(replay, name) == [(i + 1, lease.group_id) for i, lease in enumerate(leases)]


@scenario(lease_seconds=0.5)
async def test_repeated_late_and_invalid_groups_of_an_evaluation_are_not_kept(replay: Driver) -> None:
    name = await replay.start_evaluation(prompts=2, samples=2)
    late, invalid = await replay.lease(2)
    assert await replay.insert_completions(invalid, [completion()]) == FILTERED
    await asyncio.sleep(0.6)
    (again,) = await replay.lease(1)
    assert await replay.insert(late) == FENCED
    assert await replay.insert(again) == ACCEPTED
    assert await replay.insert(again) == DUPLICATE
    assert await evaluated(replay, name) == [(1, again.group_id)]


@scenario()
async def test_the_newest_groups_of_an_evaluation_are_kept_up_to_a_bound_of_bytes(replay: Driver) -> None:
    name = await replay.start_evaluation(prompts=6)
    leases = await replay.lease(6)
    size = len(codec.group_to_proto(group(leases[0], [completion(), completion()])).SerializeToString())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slipstream.replay.evaluations.EVALUATED_BYTES", 3 * size + 8)
        for lease in leases:
            await replay.insert_completions(lease, [completion(), completion()])
    newest = list(enumerate([lease.group_id for lease in leases], 1))[3:]
    assert await evaluated(replay, name) == newest
    assert (await replay.evaluation(name)).done


@scenario(learner={"samples": {"share": 0}})
async def test_a_run_that_stores_nothing_keeps_no_groups_of_evaluations(replay: Driver) -> None:
    name = await replay.start_evaluation(prompts=1)
    (lease,) = await replay.lease(1)
    assert await replay.insert(lease) == ACCEPTED
    assert await evaluated(replay, name) == []


@scenario()
async def test_each_evaluation_has_groups_of_its_own(replay: Driver) -> None:
    first, second = [await replay.start_evaluation(version=0, prompts=1) for _ in range(2)]
    leases = await replay.lease(2)
    for lease in leases:
        await replay.insert(lease)
    assert await evaluated(replay, first) == [(1, f"{first}-000000000")]
    assert await evaluated(replay, second) == [(1, f"{second}-000000000")]
