"""Insertion of groups: it is idempotent and fenced, and it filters and counts."""

import asyncio

import pytest
from replay.driver import ACCEPTED, DUPLICATE, FENCED, FILTERED, Driver, completion, group, scenario
from slipstream.rpc import codec
from slipstream.v1 import replay_pb2 as pb
from slipstream.v1 import types_pb2


@scenario()
async def test_a_group_is_sampled_as_it_was_inserted(replay: Driver) -> None:
    await replay.announce(3)
    (lease,) = await replay.lease()
    message = codec.group_to_proto(group(lease, [completion(version=3, tokens=5), completion(reward=0.25)]))
    assert (await replay.insert_message(message)).outcome == ACCEPTED
    assert await replay.sample(1) == [message]


@scenario()
async def test_inserting_twice_under_one_lease_changes_nothing(replay: Driver) -> None:
    (lease,) = await replay.lease()
    assert await replay.insert(lease) == ACCEPTED
    assert await replay.insert(lease) == DUPLICATE
    ledger = await replay.ledger()
    assert (ledger.inserted, ledger.buffered, ledger.duplicates, ledger.tokens_inserted) == (1, 1, 1, 6)


@scenario()
async def test_an_insert_is_recognised_as_repeated_wherever_the_group_has_gone(replay: Driver) -> None:
    (lease,) = await replay.make(1)
    batch = await replay.sample(1)
    assert await replay.insert(lease) == DUPLICATE
    await replay.ack(batch, version=1)
    assert await replay.insert(lease) == DUPLICATE
    await replay.confirm(1)
    assert await replay.insert(lease) == DUPLICATE
    assert (await replay.ledger()).trained == 1


@scenario()
async def test_concurrent_inserts_of_one_lease_are_accepted_once(replay: Driver) -> None:
    (lease,) = await replay.lease()
    outcomes = await asyncio.gather(*(replay.insert(lease) for _ in range(20)))
    assert sorted(outcomes) == sorted([ACCEPTED] + [DUPLICATE] * 19)


@scenario()
async def test_a_lease_that_was_never_given_is_fenced(replay: Driver) -> None:
    (lease,) = await replay.lease()
    future = pb.Lease(group_id="g000000077", lease_epoch=1, prompt=lease.prompt, group_size=2)
    assert await replay.insert(future) == FENCED
    assert (await replay.ledger()).inserted == 0


@scenario(group_size=4)
async def test_completions_that_could_not_be_scored_are_withheld_and_counted(replay: Driver) -> None:
    (lease,) = await replay.lease()
    answers = [completion(reward=None), completion(reward=None), completion(), completion()]
    assert await replay.insert_completions(lease, answers) == ACCEPTED
    ledger = await replay.ledger()
    assert (ledger.withheld, ledger.buffered, ledger.filtered) == (2, 1, {})


@scenario(group_size=4)
async def test_a_group_with_one_scored_completion_has_no_baseline_and_is_filtered(replay: Driver) -> None:
    (lease,) = await replay.lease()
    answers = [completion(reward=None)] * 3 + [completion()]
    message = codec.group_to_proto(group(lease, answers))
    response = await replay.insert_message(message)
    assert (response.outcome, response.filter_reason) == (FILTERED, "unscored")
    ledger = await replay.ledger()
    assert (ledger.filtered, ledger.buffered, ledger.inserted, ledger.withheld) == ({"unscored": 1}, 0, 1, 3)
    assert await replay.insert_completions(lease, answers) == DUPLICATE
    assert await replay.stored_bytes(lease.group_id) is None


@scenario(group_size=1)
async def test_a_group_of_one_is_filtered_only_without_any_score(replay: Driver) -> None:
    first, second = await replay.lease(2)
    assert await replay.insert(first) == ACCEPTED
    assert await replay.insert(second, reward=None) == FILTERED


@scenario()
async def test_an_invalid_answer_is_a_score(replay: Driver) -> None:
    (lease,) = await replay.lease()
    message = codec.group_to_proto(group(lease, [completion(reward=0.0)] * 2))
    for answer in message.completions:
        answer.rewards[0].outcome = types_pb2.OUTCOME_INVALID_ANSWER
    assert (await replay.insert_message(message)).outcome == ACCEPTED
    assert (await replay.ledger()).withheld == 0


@scenario()
async def test_a_group_is_kept_and_handed_out_byte_by_byte_as_it_came(replay: Driver) -> None:
    (lease,) = await replay.lease()
    message = codec.group_to_proto(group(lease, [completion(), completion()]))
    name = types_pb2.Group(group_id=message.group_id, lease_epoch=message.lease_epoch)
    message.ClearField("group_id")
    message.ClearField("lease_epoch")
    payload = (
        message.SerializeToString() + name.SerializeToString()
    )  # the fields in an order that no encoder writes
    response = await replay.stub.InsertGroup(pb.InsertGroupRequest(group=payload))
    assert response.outcome == ACCEPTED
    assert await replay.stored_bytes(lease.group_id) == payload
    request = pb.SampleBatchRequest(groups=1, max_staleness=8, hand_out=replay.learner.next_hand_out())
    assert [answer.group async for answer in replay.stub.SampleBatch(request)] == [payload]


async def taken(replay: Driver) -> list[tuple[str, str]]:
    """Return id and reason of the filtered groups that the learner takes now."""
    answers = [answer async for answer in replay.stub.TakeFiltered(pb.TakeFilteredRequest())]
    return [(types_pb2.Group.FromString(answer.group).group_id, answer.reason) for answer in answers]


@scenario()
async def test_filtered_groups_are_handed_to_the_learner_once_as_they_were_inserted(replay: Driver) -> None:
    first, second, third = await replay.lease(3)
    unscored = [completion(reward=None), completion(reward=None)]
    assert await replay.insert_completions(first, unscored) == FILTERED
    assert await replay.insert(second) == ACCEPTED
    message = codec.group_to_proto(group(third, unscored))
    assert (await replay.insert_message(message)).outcome == FILTERED
    assert await replay.insert_completions(first, unscored) == DUPLICATE
    answers = [answer async for answer in replay.stub.TakeFiltered(pb.TakeFilteredRequest())]
    assert [answer.reason for answer in answers] == ["unscored", "unscored"]
    assert {answer.state for answer in answers} == {"filtered"}
    assert answers[1].group == message.SerializeToString()
    assert await taken(replay) == []


@scenario()
async def test_groups_that_are_dropped_over_age_are_handed_to_the_learner(replay: Driver) -> None:
    old, young = await replay.lease(2)
    await replay.attach(5)
    await replay.insert_completions(old, [completion(version=1, reward=r) for r in (0.0, 1.0)])
    await replay.insert_completions(young, [completion(version=4, reward=r) for r in (0.0, 1.0)])
    (batch,) = await replay.sample(1, version=5, max_staleness=2)
    assert batch.group_id == young.group_id
    (answer,) = [answer async for answer in replay.stub.TakeFiltered(pb.TakeFilteredRequest())]
    assert (answer.state, answer.reason) == ("dropped", "stale")
    assert types_pb2.Group.FromString(answer.group).group_id == old.group_id
    assert (await replay.ledger()).dropped == {"stale": 1}


@scenario(learner={"samples": {"share": 0}})
async def test_a_run_that_stores_nothing_keeps_no_dropped_groups(replay: Driver) -> None:
    (lease,) = await replay.lease()
    await replay.attach(5)
    await replay.insert_completions(lease, [completion(version=1, reward=r) for r in (0.0, 1.0)])
    assert await replay.sample(1, version=5, max_staleness=2) == []
    assert (await replay.ledger()).dropped == {"stale": 1}
    assert await taken(replay) == []


@scenario()
async def test_the_newest_filtered_groups_are_kept_up_to_a_bound_of_bytes(replay: Driver) -> None:
    leases = await replay.lease(6)
    unscored = [completion(reward=None), completion(reward=None)]
    size = len(codec.group_to_proto(group(leases[0], unscored)).SerializeToString())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slipstream.replay.store.FILTERED_BYTES", 4 * size)
        for lease in leases:
            assert await replay.insert_completions(lease, unscored) == FILTERED
    assert [name for name, _ in await taken(replay)] == [lease.group_id for lease in leases[3:]]
    assert await taken(replay) == []


@scenario(learner={"samples": {"share": 0}})
async def test_a_run_that_stores_nothing_keeps_no_filtered_groups(replay: Driver) -> None:
    (lease,) = await replay.lease()
    assert await replay.insert_completions(lease, [completion(reward=None)] * 2) == FILTERED
    assert await taken(replay) == []
