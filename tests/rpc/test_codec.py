"""A value survives the wire unchanged, and the error of a malformed message names the field."""

import math
import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slipstream.records import (
    ChatMessage,
    Completion,
    FinishReason,
    Group,
    GroupTimes,
    Lease,
    Ledger,
    Outcome,
    Prompt,
    Purpose,
    Reward,
    RolloutTime,
    RoutedExperts,
    RoutingMismatch,
    StepReward,
    TeacherLogprobs,
    TopLogprobs,
    VersionSpan,
)
from slipstream.rpc import codec, replay_codec
from slipstream.v1 import replay_pb2 as replay
from slipstream.v1 import types_pb2 as pb

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
COUNTS = st.integers(0, 2**40)
SINGLES = st.floats(-50, 0).map(lambda x: float(struct.unpack("f", struct.pack("f", x))[0]))
COUNTERS = st.dictionaries(TEXTS, COUNTS, max_size=3)


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    messages = draw(st.lists(st.builds(ChatMessage, role=TEXTS, content=TEXTS), max_size=3))
    return Prompt(
        prompt_id=draw(TEXTS),
        task=draw(TEXTS),
        answer=draw(TEXTS),
        text="" if messages else draw(TEXTS) + "?",
        messages=tuple(messages),
        fields=draw(st.dictionaries(TEXTS, TEXTS, max_size=3)),
        source=draw(TEXTS),
    )


@st.composite
def routed_experts(draw: st.DrawFn, tokens: int) -> RoutedExperts:
    layers, top_k, id_bytes = (draw(st.integers(1, 2)) for _ in range(3))
    size = tokens * layers * top_k * id_bytes
    ids = draw(st.binary(min_size=size, max_size=size))
    return RoutedExperts(tokens=tokens, layers=layers, top_k=top_k, id_bytes=id_bytes, ids=ids)


@st.composite
def teacher_logprobs(draw: st.DrawFn, tokens: int) -> TeacherLogprobs:
    top_k = draw(st.integers(0, 3))
    sizes = (4 * tokens, 4 * tokens * top_k, 4 * tokens * top_k)
    own, ids, top = (draw(st.binary(min_size=size, max_size=size)) for size in sizes)
    return TeacherLogprobs(logprobs=own, top_k=top_k, top_ids=ids, top_logprobs=top)


@st.composite
def top_logprobs(draw: st.DrawFn, tokens: int) -> TopLogprobs:
    top_k = draw(st.integers(1, 3))
    size = 4 * tokens * top_k
    ids, logprobs = (draw(st.binary(min_size=size, max_size=size)) for _ in range(2))
    return TopLogprobs(top_k=top_k, ids=ids, logprobs=logprobs)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    lengths = draw(st.lists(st.integers(1, 4), max_size=3))
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    size = sum(lengths)
    mask = tuple(draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)))
    return Completion(
        token_ids=tuple(draw(st.lists(st.integers(0, 2**31 - 1), min_size=size, max_size=size))),
        logprobs=tuple(draw(st.lists(SINGLES, min_size=size, max_size=size))),
        mask=mask,
        spans=tuple(
            VersionSpan(version=draw(COUNTS), start=end - length, end=end)
            for length, end in zip(lengths, ends, strict=True)
        ),
        finish_reason=draw(st.sampled_from(FinishReason)),
        text=draw(TEXTS),
        rewards=tuple(
            draw(
                st.lists(
                    st.builds(
                        Reward,
                        name=TEXTS,
                        value=st.floats(allow_nan=False),
                        outcome=st.sampled_from(Outcome),
                        detail=TEXTS,
                    ),
                    max_size=2,
                )
            )
        ),
        routed_experts=draw(st.none() | routed_experts(size)) if size else None,
        teacher=draw(st.none() | teacher_logprobs(size)),
        top_logprobs=draw(st.none() | top_logprobs(sum(mask))),
    )


MOMENTS = st.floats(0, 2**33)
TIMES = st.builds(
    GroupTimes,
    **dict.fromkeys(("leased", "placed", "sampled", "scored", "inserted"), MOMENTS),
    rollouts=st.lists(st.builds(RolloutTime, rollout=TEXTS, first_token=MOMENTS), max_size=3).map(tuple),
)
GROUPS = st.builds(
    Group,
    group_id=TEXTS,
    lease_epoch=COUNTS,
    dispatch_index=COUNTS,
    prompt=prompts(),
    prompt_token_ids=st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple),
    completions=st.lists(completions(), max_size=3).map(tuple),
    worker_id=TEXTS,
    times=st.none() | TIMES,
)
LEASES = st.builds(
    Lease,
    group_id=TEXTS,
    lease_epoch=COUNTS,
    dispatch_index=COUNTS,
    prompt=prompts(),
    group_size=st.integers(1, 99),
    seconds=st.floats(0, 1e6),
    purpose=st.sampled_from(Purpose),
)
LEDGERS = st.builds(
    Ledger,
    **{
        field: COUNTERS if field in ("filtered", "dropped", "skipped", "retired") else COUNTS
        for field in Ledger.__dataclass_fields__
    },
)


def test_logprobs_of_a_teacher_with_mismatched_lengths_are_refused() -> None:
    message = pb.TeacherLogprobs(logprobs=bytes(8), top_k=2, top_ids=bytes(16), top_logprobs=bytes(12))
    with pytest.raises(ValueError, match="need 16 bytes of ids and of their logprobs, got 16 and 12"):
        codec.teacher_logprobs_from_proto(message)
    completion = pb.Completion(
        token_ids=[1],
        logprobs=[-1.0],
        mask=b"\x01",
        spans=[pb.VersionSpan(version=0, start=0, end=1)],
        finish_reason=pb.FINISH_REASON_STOP,
        teacher=pb.TeacherLogprobs(logprobs=bytes(8)),
    )
    with pytest.raises(ValueError, match="the teacher's logprobs cover 2 tokens, but there are 1"):
        codec.completion_from_proto(completion)


def test_top_logprobs_with_mismatched_lengths_are_refused() -> None:
    for top_k, ids, logprobs in ((2, 16, 12), (2, 12, 12), (0, 0, 0), (-1, 4, 4)):
        message = pb.TopLogprobs(top_k=top_k, ids=bytes(ids), logprobs=bytes(logprobs))
        with pytest.raises(ValueError, match=f"got {ids} bytes of ids and {logprobs} of logprobs"):
            codec.top_logprobs_from_proto(message)
    two = pb.TopLogprobs(top_k=1, ids=bytes(8), logprobs=bytes(8))
    with pytest.raises(ValueError, match="top logprobs of 2 tokens, and the policy sampled 1"):
        codec.completion_from_proto(malformed_completion(mask=b"\1\0", top_logprobs=two))


@pytest.mark.parametrize("top_k", [1, 20])
def test_a_top_logprob_takes_8_bytes_and_a_completion_without_them_takes_none(top_k: int) -> None:
    tokens = 400  # half of which come from an environment
    plain = Completion(
        token_ids=(7,) * tokens,
        logprobs=(-1.0,) * tokens,
        mask=(1, 0) * (tokens // 2),
        spans=(VersionSpan(version=0, start=0, end=tokens),),
        finish_reason=FinishReason.STOP,
    )
    nothing = bytes(4 * top_k * tokens // 2)
    top = replace(plain, top_logprobs=TopLogprobs(top_k=top_k, ids=nothing, logprobs=nothing))
    size, without = (codec.completion_to_proto(each).ByteSize() for each in (top, plain))
    assert without - 9 * tokens < 40  # 9 bytes a token: id, logprob, mask
    assert 0 < size - without - 8 * top_k * tokens // 2 < 20


@settings(max_examples=40, deadline=None)
@given(GROUPS)
def test_a_group_survives_the_wire_token_by_token(group: Group) -> None:
    sent = codec.group_to_proto(group).SerializeToString()
    assert codec.group_from_proto(pb.Group.FromString(sent)) == group


def test_a_group_of_an_older_actor_has_no_times() -> None:
    message = codec.group_to_proto(GROUP)
    assert not message.HasField("times")
    assert codec.group_from_proto(pb.Group.FromString(message.SerializeToString())).times is None


@pytest.mark.parametrize("moment", [math.nan, math.inf])
def test_a_group_with_a_time_that_is_no_number_arrives_without_times(moment: float) -> None:
    for times in (
        pb.GroupTimes(leased=1.0, scored=moment),
        pb.GroupTimes(rollouts=[pb.RolloutTime(rollout="r", first_token=moment)]),
    ):
        message = codec.group_to_proto(GROUP)
        message.times.CopyFrom(times)
        assert codec.group_from_proto(message) == GROUP


@settings(max_examples=40, deadline=None)
@given(LEASES)
def test_a_lease_survives_the_wire(lease: Lease) -> None:
    sent = replay_codec.lease_to_proto(lease).SerializeToString()
    assert replay_codec.lease_from_proto(replay.Lease.FromString(sent)) == lease


@settings(max_examples=40, deadline=None)
@given(LEDGERS)
def test_a_ledger_survives_the_wire_with_every_counter(ledger: Ledger) -> None:
    sent = replay_codec.ledger_to_proto(ledger).SerializeToString()
    assert replay_codec.ledger_from_proto(replay.Ledger.FromString(sent)) == ledger


def test_the_message_of_the_ledger_has_the_counters_of_the_value() -> None:
    assert {f.name for f in replay.Ledger.DESCRIPTOR.fields} == set(Ledger.__dataclass_fields__)


PROMPT = Prompt(prompt_id="p", task="t", answer="4", text="2+2=")
GROUP = Group(
    group_id="g", lease_epoch=1, dispatch_index=0, prompt=PROMPT, prompt_token_ids=(1,), completions=()
)
COMPLETION = Completion(
    token_ids=(1, 2),
    logprobs=(-1.0, -2.0),
    mask=(1, 1),
    spans=(VersionSpan(version=0, start=0, end=2),),
    finish_reason=FinishReason.STOP,
)


def malformed_completion(**changes: object) -> pb.Completion:
    message = codec.completion_to_proto(COMPLETION)
    for name, value in changes.items():
        message.ClearField(name)  # type: ignore[arg-type]
        message.MergeFrom(pb.Completion(**{name: value}))  # type: ignore[arg-type]
    return message


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"logprobs": [-1.0]}, "equally long, got 2, 1, 2"),
        ({"mask": b"\1"}, "equally long, got 2, 2, 1"),
        ({"spans": []}, "spans end at 0, but there are 2 tokens"),
        ({"spans": [pb.VersionSpan(version=0, start=1, end=2)]}, "spans must tile"),
        ({"spans": [pb.VersionSpan(version=0, start=0, end=3)]}, "spans end at 3"),
        ({"spans": [pb.VersionSpan(version=0, start=0, end=0)]}, "spans must tile"),
        ({"finish_reason": 0}, "finish_reason is 0, which is not a known value"),
        ({"rewards": [pb.Reward(name="r", value=1)]}, "Reward.outcome is 0"),
    ],
)
def test_a_malformed_completion_is_a_value_error_that_names_the_field(
    changes: dict[str, object], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        codec.completion_from_proto(malformed_completion(**changes))


def test_routed_experts_whose_size_differs_from_the_declared_one_are_refused_by_name() -> None:
    experts = pb.RoutedExperts(tokens=2, layers=3, top_k=2, id_bytes=1, ids=b"12345678901")
    with pytest.raises(
        RoutingMismatch, match=r"shape \[2, 3, 2\] with ids of 1 bytes needs 12 bytes, got 11"
    ):
        codec.completion_from_proto(malformed_completion(routed_experts=experts))


def test_a_prompt_with_text_and_messages_or_neither_is_refused() -> None:
    both = codec.prompt_to_proto(PROMPT)
    both.messages.add(role="user", content="hello")
    for message in (both, pb.Prompt(prompt_id="p")):
        with pytest.raises(ValueError, match="prompt p: needs either text or messages"):
            codec.prompt_from_proto(message)


def test_an_unset_enum_is_refused() -> None:
    lease = replay_codec.lease_to_proto(
        Lease(group_id="g", lease_epoch=0, dispatch_index=0, prompt=PROMPT, group_size=2, seconds=1)
    )
    lease.purpose = replay.PURPOSE_UNSPECIFIED
    with pytest.raises(ValueError, match=r"Lease.purpose is 0"):
        replay_codec.lease_from_proto(lease)
    with pytest.raises(ValueError, match=r"outcome is 9"):
        replay_codec.insert_outcome_from_proto(9)


def test_every_value_of_an_enum_has_its_own_number() -> None:
    for table in (
        codec.FINISH_REASONS,
        codec.OUTCOMES,
        replay_codec.PURPOSES,
        replay_codec.INSERT_OUTCOMES,
        replay_codec.WORKER_KINDS,
    ):
        assert set(table) == set(type(next(iter(table))))
        assert len(set(table.values())) == len(table)
        assert 0 not in table.values()


def test_the_answer_that_a_reward_extracted_survives_the_wire() -> None:
    reward = Reward(name="r", value=0.5, outcome=Outcome.SCORE, detail="near", answer="4 ½")
    assert codec.reward_from_proto(codec.reward_to_proto(reward)) == reward


def test_the_scores_of_steps_survive_the_wire_with_their_ends() -> None:
    steps = (StepReward(value=0.25, text_end=7, token_end=3), StepReward(value=1.0, text_end=9, token_end=4))
    reward = Reward(name="r", value=0.25, outcome=Outcome.SCORE, steps=steps)
    assert codec.reward_from_proto(codec.reward_to_proto(reward)) == reward


def test_a_withheld_completion_survives_the_wire_as_withheld() -> None:
    error = Reward(name="r", value=0.0, outcome=Outcome.ERROR, detail="sandbox")
    withheld = replace(COMPLETION, rewards=(error,))
    assert codec.completion_from_proto(codec.completion_to_proto(withheld)).withheld
