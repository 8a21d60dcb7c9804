"""Replay counts a completion of several segments once, and the tokens of all its segments."""

from dataclasses import replace

from replay.driver import completion, group, packed
from slipstream.records import FinishReason, Segment, VersionSpan
from slipstream.replay.selection import select
from slipstream.replay.summary import summarise
from slipstream.rpc.group_checks import check_group
from slipstream.v1 import replay_pb2, types_pb2

LEASE = replay_pb2.Lease(group_id="g", prompt=types_pb2.Prompt(prompt_id="p", text="2+2="))
LATER = Segment(
    token_ids=(8, 90, 9),
    logprobs=(-1.0, 0.0, -1.0),
    mask=(1, 0, 1),
    spans=(VersionSpan(version=4, start=0, end=3),),
    finish_reason=FinishReason.STOP,
    prompt_token_ids=(6, 7),
)


def test_a_group_with_segments_is_summarised_over_all_of_them() -> None:
    agent = replace(completion(version=2, reward=1.0), later_segments=(LATER,))
    message = packed(group(LEASE, [agent, completion(version=2, reward=0.0)]))
    check_group(message, 100)
    summary = summarise(message, {"exact_match": 1.0})
    assert (summary.completions, summary.task_rewards) == (2, (1.0, 0.0))
    assert (summary.tokens, summary.sampled_tokens) == (3 + 3 + 3, 3 + 2 + 3)
    assert (summary.version_sum, summary.newest_version) == (6 * 2 + 2 * 4, 4)


def test_a_majority_is_of_completions_that_say_the_same_in_all_segments() -> None:
    # All three have the same first segment; only the first two have the same later one.
    low = [replace(completion(reward=reward), later_segments=(LATER,)) for reward in (0.1, 0.3)]
    message = packed(group(LEASE, [*low, completion(reward=0.8)]))
    majority = select(message, {"exact_match": 1.0})["exact_match"].majority
    assert majority is not None
    assert abs(majority - 0.2) < 1e-9
