"""Conversion between the values of slipstream.records and the messages of types.proto.

Those of replay.proto are in replay_codec.py, those of rollout.proto in sampling_codec.py.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from slipstream import records as t
from slipstream.v1 import types_pb2 as pb

V = TypeVar("V")
FINISH_REASONS = {
    t.FinishReason.STOP: pb.FINISH_REASON_STOP,
    t.FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
}
OUTCOMES = {
    t.Outcome.SCORE: pb.OUTCOME_SCORE,
    t.Outcome.INVALID_ANSWER: pb.OUTCOME_INVALID_ANSWER,
    t.Outcome.ERROR: pb.OUTCOME_ERROR,
}
_FINISH_REASON_OF: dict[int, t.FinishReason] = {number: value for value, number in FINISH_REASONS.items()}
_OUTCOME_OF: dict[int, t.Outcome] = {number: value for value, number in OUTCOMES.items()}


def prompt_to_proto(prompt: t.Prompt) -> pb.Prompt:
    """Prompt → message."""
    messages = [pb.ChatMessage(role=m.role, content=m.content) for m in prompt.messages]
    return pb.Prompt(
        prompt_id=prompt.prompt_id,
        task=prompt.task,
        text=prompt.text,
        messages=messages,
        answer=prompt.answer,
        fields=prompt.fields,
        source=prompt.source,
    )


def prompt_from_proto(message: pb.Prompt) -> t.Prompt:
    """Message → Prompt. Errors: ValueError when it has both text and messages, or neither."""
    return t.Prompt(
        prompt_id=message.prompt_id,
        task=message.task,
        text=message.text,
        messages=tuple(t.ChatMessage(role=m.role, content=m.content) for m in message.messages),
        answer=message.answer,
        fields=dict(message.fields),
        source=message.source,
    )


def reward_to_proto(reward: t.Reward) -> pb.Reward:
    """Reward → message."""
    return pb.Reward(
        name=reward.name,
        value=reward.value,
        outcome=OUTCOMES[reward.outcome],
        detail=reward.detail,
        answer=reward.answer,
        steps=[
            pb.StepReward(
                value=step.value, text_end=step.text_end, token_end=step.token_end, segment=step.segment
            )
            for step in reward.steps
        ],
    )


def reward_from_proto(message: pb.Reward) -> t.Reward:
    """Message → Reward. Errors: ValueError for an outcome that is not set."""
    outcome = outcome_from_proto(message.outcome)
    return t.Reward(
        name=message.name,
        value=message.value,
        outcome=outcome,
        detail=message.detail,
        answer=message.answer,
        steps=tuple(
            t.StepReward(
                value=step.value, text_end=step.text_end, token_end=step.token_end, segment=step.segment
            )
            for step in message.steps
        ),
    )


def routed_experts_to_proto(experts: t.RoutedExperts) -> pb.RoutedExperts:
    """RoutedExperts → message."""
    return pb.RoutedExperts(
        tokens=experts.tokens,
        layers=experts.layers,
        top_k=experts.top_k,
        id_bytes=experts.id_bytes,
        ids=experts.ids,
    )


def routed_experts_from_proto(message: pb.RoutedExperts) -> t.RoutedExperts:
    """Message → RoutedExperts. Errors: RoutingMismatch when the ids do not have the stated shape."""
    return t.RoutedExperts(
        tokens=message.tokens,
        layers=message.layers,
        top_k=message.top_k,
        id_bytes=message.id_bytes,
        ids=message.ids,
    )


def teacher_logprobs_to_proto(teacher: t.TeacherLogprobs) -> pb.TeacherLogprobs:
    """TeacherLogprobs → message."""
    return pb.TeacherLogprobs(
        logprobs=teacher.logprobs,
        top_k=teacher.top_k,
        top_ids=teacher.top_ids,
        top_logprobs=teacher.top_logprobs,
    )


def teacher_logprobs_from_proto(message: pb.TeacherLogprobs) -> t.TeacherLogprobs:
    """Message → TeacherLogprobs. Errors: ValueError when the bytes do not have the stated shape."""
    return t.TeacherLogprobs(
        logprobs=message.logprobs,
        top_k=message.top_k,
        top_ids=message.top_ids,
        top_logprobs=message.top_logprobs,
    )


def top_logprobs_to_proto(top: t.TopLogprobs) -> pb.TopLogprobs:
    """TopLogprobs → message."""
    return pb.TopLogprobs(top_k=top.top_k, ids=top.ids, logprobs=top.logprobs)


def top_logprobs_from_proto(message: pb.TopLogprobs) -> t.TopLogprobs:
    """Message → TopLogprobs. Errors: ValueError when the bytes are not whole rows."""
    return t.TopLogprobs(top_k=message.top_k, ids=message.ids, logprobs=message.logprobs)


def spans_to_proto(spans: Iterable[t.VersionSpan]) -> list[pb.VersionSpan]:
    """Version spans → messages."""
    return [pb.VersionSpan(version=span.version, start=span.start, end=span.end) for span in spans]


def spans_from_proto(messages: Iterable[pb.VersionSpan]) -> tuple[t.VersionSpan, ...]:
    """Messages → version spans."""
    return tuple(t.VersionSpan(version=m.version, start=m.start, end=m.end) for m in messages)


def completion_to_proto(completion: t.Completion) -> pb.Completion:
    """Completion → message."""
    return pb.Completion(
        **_segment_fields(completion),
        rewards=[reward_to_proto(reward) for reward in completion.rewards],
        text=completion.text,
        later_segments=[pb.Segment(**_segment_fields(segment)) for segment in completion.later_segments],
    )


def completion_from_proto(message: pb.Completion) -> t.Completion:
    """Message → Completion. Errors: ValueError when lengths differ or spans do not tile the tokens."""
    return t.Completion(
        **_segment_values(message),
        rewards=tuple(reward_from_proto(reward) for reward in message.rewards),
        text=message.text,
        later_segments=tuple(t.Segment(**_segment_values(each)) for each in message.later_segments),
    )


def _segment_fields(segment: t.Segment) -> dict[str, Any]:
    """Return the fields that a completion and its later segments have in common, for a message."""
    experts, teacher, top = segment.routed_experts, segment.teacher, segment.top_logprobs
    return {
        "token_ids": segment.token_ids,
        "logprobs": segment.logprobs,
        "mask": bytes(segment.mask),
        "spans": spans_to_proto(segment.spans),
        "finish_reason": FINISH_REASONS[segment.finish_reason],
        "prompt_token_ids": segment.prompt_token_ids or (),
        "routed_experts": None if experts is None else routed_experts_to_proto(experts),
        "teacher": None if teacher is None else teacher_logprobs_to_proto(teacher),
        "top_logprobs": None if top is None else top_logprobs_to_proto(top),
        "engines": segment.engines if segment.engines != 1 else 0,
        "turn_ends": [pb.TurnEnd(number=end.number, token_end=end.token_end) for end in segment.turn_ends],
    }


def _segment_values(message: pb.Completion | pb.Segment) -> dict[str, Any]:
    """Return the fields that a completion and its later segments have in common, for a record."""
    return {
        "token_ids": tuple(message.token_ids),
        "logprobs": tuple(message.logprobs),
        "mask": tuple(message.mask),
        "spans": spans_from_proto(message.spans),
        "finish_reason": finish_reason_from_proto(message.finish_reason),
        "prompt_token_ids": tuple(message.prompt_token_ids) or None,
        "routed_experts": routed_experts_from_proto(message.routed_experts)
        if message.HasField("routed_experts")
        else None,
        "teacher": teacher_logprobs_from_proto(message.teacher) if message.HasField("teacher") else None,
        "top_logprobs": top_logprobs_from_proto(message.top_logprobs)
        if message.HasField("top_logprobs")
        else None,
        "engines": message.engines or 1,
        "turn_ends": tuple(
            t.TurnEnd(number=end.number, token_end=end.token_end) for end in message.turn_ends
        ),
    }


def group_to_proto(group: t.Group) -> pb.Group:
    """Group → message."""
    return pb.Group(
        group_id=group.group_id,
        lease_epoch=group.lease_epoch,
        dispatch_index=group.dispatch_index,
        prompt=prompt_to_proto(group.prompt),
        prompt_token_ids=group.prompt_token_ids,
        completions=[completion_to_proto(completion) for completion in group.completions],
        worker_id=group.worker_id,
        times=None if group.times is None else group_times_to_proto(group.times),
    )


def group_from_proto(
    message: pb.Group, *, hand_out: t.HandOut | None = None, taken: float | None = None
) -> t.Group:
    """Message → Group, in the batch of this hand-out, which the learner received at the time `taken`.

    Errors: ValueError for a malformed field.
    """
    return t.Group(
        group_id=message.group_id,
        lease_epoch=message.lease_epoch,
        dispatch_index=message.dispatch_index,
        prompt=prompt_from_proto(message.prompt),
        prompt_token_ids=tuple(message.prompt_token_ids),
        completions=tuple(completion_from_proto(completion) for completion in message.completions),
        worker_id=message.worker_id,
        times=group_times_from_proto(message.times) if message.HasField("times") else None,
        hand_out=hand_out,
        taken=taken,
    )


def group_times_to_proto(times: t.GroupTimes) -> pb.GroupTimes:
    """GroupTimes → message."""
    return pb.GroupTimes(
        leased=times.leased,
        placed=times.placed,
        rollouts=[pb.RolloutTime(rollout=r.rollout, first_token=r.first_token) for r in times.rollouts],
        sampled=times.sampled,
        scored=times.scored,
        inserted=times.inserted,
    )


def group_times_from_proto(message: pb.GroupTimes) -> t.GroupTimes | None:
    """Message → GroupTimes; None if a time is no finite number, which is no reason to lose the group."""
    times = t.GroupTimes(
        leased=message.leased,
        placed=message.placed,
        rollouts=tuple(
            t.RolloutTime(rollout=each.rollout, first_token=each.first_token) for each in message.rollouts
        ),
        sampled=message.sampled,
        scored=message.scored,
        inserted=message.inserted,
    )
    moments = (times.leased, times.placed, times.sampled, times.scored, times.inserted)
    return times if all(map(math.isfinite, (*moments, *(r.first_token for r in times.rollouts)))) else None


def finish_reason_from_proto(number: int) -> t.FinishReason:
    """Enum number → FinishReason. Errors: ValueError when it is not set."""
    return value_of(_FINISH_REASON_OF, number, "finish_reason")


def outcome_from_proto(number: int) -> t.Outcome:
    """Enum number → Outcome. Errors: ValueError when it is not set."""
    return value_of(_OUTCOME_OF, number, "Reward.outcome")


def value_of(table: Mapping[int, V], number: int, where: str) -> V:
    """Return the value of an enum number. Errors: ValueError, with `where`, for an unknown number."""
    if number not in table:
        raise ValueError(f"{where} is {number}, which is not a known value")
    return table[number]
