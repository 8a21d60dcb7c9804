"""The events about rewards in the log of a rollout."""

import asyncio
import io
from collections.abc import Sequence
from dataclasses import replace

from slipstream.actor.reward_log import QUIET_SECONDS, RewardLog
from slipstream.records import Completion, FinishReason, Outcome, Prompt, Reward
from slipstream.telemetry.logs import Event, Log, read_event

PROMPT = Prompt(prompt_id="p", task="t", text="1+2=", answer="3")
PLAIN = Completion(token_ids=(), logprobs=(), mask=(), spans=(), finish_reason=FinishReason.STOP, text="4")


class FixedScorer:
    """Returns these reward vectors."""

    def __init__(self, *vectors: tuple[Reward, ...]) -> None:
        self._vectors = vectors

    async def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Completion]:
        return [replace(each, rewards=v) for each, v in zip(completions, self._vectors, strict=True)]


def right(value: float) -> Reward:
    return Reward(name="right", value=value, outcome=Outcome.SCORE)


def shape(value: float) -> Reward:
    return Reward(name="shape", value=value, outcome=Outcome.SCORE)


def failed(name: str) -> Reward:
    return Reward(name=name, value=0.0, outcome=Outcome.ERROR, detail="KeyError")


def logged(*vectors: tuple[Reward, ...], at: Sequence[float] = (0.0,)) -> list[Event]:
    """Return the events of one group with these vectors, scored at these times."""
    stream, moments = io.StringIO(), list(at)
    log = Log(pod="rollout-0", stream=stream)
    reward_log = RewardLog(
        FixedScorer(*vectors), {"right": 1.0, "shape": 0.0}, log=log, clock=lambda: moments[0]
    )
    while moments:
        scored = asyncio.run(reward_log.score(PROMPT, [PLAIN] * len(vectors)))
        assert [each.rewards for each in scored] == list(vectors)
        moments.pop(0)
    return [event for line in stream.getvalue().splitlines() if (event := read_event(line))]


def test_each_failed_reward_is_logged_once_per_interval() -> None:
    vectors = ((right(1), failed("shape")), (failed("right"), failed("shape")))
    events = logged(*vectors, at=(0.0, 1.0, QUIET_SECONDS + 1))

    assert [(e.event, e.values["reward"]) for e in events] == 2 * [
        ("reward failed", "shape"),
        ("reward failed", "right"),
    ]
    assert events[0].values["detail"] == "KeyError"


def test_a_group_with_equal_rewards_is_logged_with_a_sample() -> None:
    (event,) = logged((right(0), shape(1)), (right(0), shape(0)))

    assert event.event == "group without variance"
    assert event.values == {
        "prompt": "p",
        "truth": "3",
        "answers": "2",
        "answer": "4",
        "rewards": "right 0, shape 1",
    }


def test_a_group_with_different_rewards_or_with_one_score_is_not_logged() -> None:
    assert logged((right(0),), (right(1),)) == []
    assert [event.event for event in logged((right(0),), (failed("right"),))] == ["reward failed"]


def test_the_sample_of_a_group_is_a_scored_answer() -> None:
    failure, event = logged((failed("right"), shape(1)), (right(0), shape(1)), (right(0), shape(1)))

    assert failure.event == "reward failed"
    assert (event.values["answers"], event.values["rewards"]) == ("2", "right 0, shape 1")
